"""Small training scripts that make the same calls of torch and frameworks as well-known ones, for gloo on the CPU.

Each trains :data:`STEPS` steps and prints ``trained`` on each rank. :data:`SCRIPTS` has them by name.
"""

from __future__ import annotations

STEPS = 20
"""How many steps each script makes."""

_GPT = """
import math, os
from contextlib import nullcontext
import torch
from torch import nn
from torch.nn import functional as F
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm_1, self.norm_2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm_1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + self.proj(y)
        return x + self.mlp(self.norm_2(x))

class GPT(nn.Module):
    def __init__(self, vocabulary=65, context=64, width=128, layers=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.wte.weight = self.head.weight
    def forward(self, x, targets=None):
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        logits = self.head(h)
        return logits, F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))

def batch():
    x = torch.randint(65, (8, 65))
    return x[:, :-1], x[:, 1:].contiguous()
"""

_NANOGPT = (
    _GPT
    + """
dist.init_process_group(backend="gloo")
master = int(os.environ["RANK"]) == 0
torch.manual_seed(1337 + int(os.environ["RANK"]))
raw_model = GPT()
scaler = torch.amp.GradScaler("cpu", enabled=False)
decay = [p for p in raw_model.parameters() if p.dim() >= 2]
rest = [p for p in raw_model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=6e-4)
model = DDP(raw_model)

@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = torch.zeros(4)
    for k in range(4):
        losses[k] = model(*batch())[1].item()
    model.train()
    return losses.mean()

x, y = batch()
for step in range(20):
    for group in optimizer.param_groups:
        group["lr"] = 6e-4 * 0.5 * (1.0 + math.cos(math.pi * step / 20))
    if step % 5 == 0 and master:
        estimate_loss()
    for micro_step in range(4):
        model.require_backward_grad_sync = micro_step == 3
        with nullcontext():
            loss = model(x, y)[1] / 4
        x, y = batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
dist.destroy_process_group()
print("trained")
"""
)

_MINGPT = (
    _GPT
    + """
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

class Text(Dataset):
    def __len__(self):
        return 80
    def __getitem__(self, index):
        x = torch.randint(65, (65,))
        return x[:-1], x[1:]

class Trainer:
    def __init__(self, data):
        self.loader = DataLoader(data, batch_size=8, shuffle=False, num_workers=0, sampler=DistributedSampler(data))
        model = GPT()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95))
        self.scaler = torch.amp.GradScaler("cpu")
        self.model = DDP(model)
    def _run_batch(self, source, targets, train=True):
        with torch.set_grad_enabled(train), torch.amp.autocast(device_type="cpu", dtype=torch.bfloat16):
            _, loss = self.model(source, targets)
        if train:
            self.optimizer.zero_grad(set_to_none=True)
            self.scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.item()
    def train(self, epochs):
        for epoch in range(epochs):
            self.loader.sampler.set_epoch(epoch)
            for source, targets in self.loader:
                self._run_batch(source, targets)
            if os.environ["RANK"] == "0":
                torch.save(self.model.module.state_dict(), "snapshot.pt")
            for source, targets in self.loader:
                self._run_batch(source, targets, train=False)

dist.init_process_group("gloo")
Trainer(Text()).train(4)
dist.destroy_process_group()
print("trained")
"""
)

_TUTORIAL = """
import os
import torch, torch.nn.functional as F
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

class Trainer:
    def __init__(self, model, data, optimizer):
        self.rank, self.data, self.optimizer, self.model = int(os.environ["RANK"]), data, optimizer, DDP(model)
    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(source), targets)
        loss.backward()
        self.optimizer.step()
    def train(self, epochs):
        for epoch in range(epochs):
            self.data.sampler.set_epoch(epoch)
            for source, targets in self.data:
                self._run_batch(source, targets)
            if self.rank == 0:
                torch.save({"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch}, "snapshot.pt")

init_process_group(backend="gloo")
model = torch.nn.Linear(20, 1)
data = TensorDataset(torch.rand(640, 20), torch.rand(640, 1))
loader = DataLoader(data, batch_size=32, shuffle=False, sampler=DistributedSampler(data))
Trainer(model, loader, torch.optim.SGD(model.parameters(), lr=1e-3)).train(2)
destroy_process_group()
print("trained")
"""

_FSDP2 = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
layers = [nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True) for _ in range(3)]
model = nn.Sequential(*layers)
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(20):
    x = torch.rand(8, 32, 64)
    loss = model(x).sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
print("trained")
"""

_TENSOR_PARALLEL = """
import os
import torch, torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj, self.relu, self.out_proj = nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5)
    def forward(self, x):
        return self.out_proj(self.relu(self.in_proj(x)))

mesh = init_device_mesh(device_type="cpu", mesh_shape=(int(os.environ["WORLD_SIZE"]),))
plan = {"in_proj": ColwiseParallel(), "out_proj": RowwiseParallel()}
tp_model = parallelize_module(module=ToyModel(), device_mesh=mesh, parallelize_plan=plan)
optimizer = torch.optim.AdamW(tp_model.parameters(), lr=0.25, foreach=True)
for i in range(20):
    torch.manual_seed(i)
    output = tp_model(torch.rand(20, 10))
    output.sum().backward()
    optimizer.step()
torch.distributed.destroy_process_group()
print("trained")
"""

_IMAGENET = """
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group(backend="gloo", init_method="env://")
torch.manual_seed(0)
network = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
)
model = nn.parallel.DistributedDataParallel(network)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
data = torch.utils.data.TensorDataset(torch.rand(40, 3, 64, 64), torch.randint(10, (40,)))
sampler = torch.utils.data.distributed.DistributedSampler(data)
loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)

def validate():
    model.eval()
    with torch.no_grad():
        total = torch.zeros(1)
        for images, target in loader:
            output = model(images)
            criterion(output, target)
            total += (output.argmax(1) == target).sum()
        dist.all_reduce(total)

for epoch in range(4):
    sampler.set_epoch(epoch)
    model.train()
    for images, target in loader:
        loss = criterion(model(images), target)
        loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    validate()
    scheduler.step()
dist.destroy_process_group()
print("trained")
"""

_DCGAN = """
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
netG = nn.Sequential(
    nn.ConvTranspose2d(32, 32, 4, 1, 0), nn.BatchNorm2d(32), nn.ReLU(True),
    nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh(),
)
netD = nn.Sequential(
    nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(32, 1, 4, 1, 0), nn.Sigmoid(), nn.Flatten(0)
)
netG = nn.parallel.DistributedDataParallel(netG)
netD = nn.parallel.DistributedDataParallel(netD, broadcast_buffers=False)
criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
for i in range(20):
    netD.zero_grad()
    real = torch.rand(16, 3, 8, 8)
    errD_real = criterion(netD(real), torch.ones(16))
    errD_real.backward()
    fake = netG(torch.randn(16, 32, 1, 1))
    errD_fake = criterion(netD(fake.detach()), torch.zeros(16))
    errD_fake.backward()
    optimizerD.step()
    netG.zero_grad()
    errG = criterion(netD(fake), torch.ones(16))
    errG.backward()
    optimizerG.step()
dist.destroy_process_group()
print("trained")
"""

_TRAINER = """
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    def forward(self, x, labels=None):
        result = self.net(x).squeeze(-1)
        return {"loss": ((result - labels) ** 2).mean(), "logits": result}

data = [{"x": torch.full((64,), number / 512), "labels": torch.tensor(number / 512)} for number in range(512)]
settings = dict(use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no", dataloader_pin_memory=False)
settings |= dict(ddp_find_unused_parameters=False, eval_strategy="steps", eval_steps=5, gradient_accumulation_steps=2)
arguments = TrainingArguments("out", max_steps=20, per_device_train_batch_size=16, **settings)
Trainer(Net(), arguments, train_dataset=data, eval_dataset=data[:64]).train()
print("trained")
"""

_LIGHTNING = """
import os
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    def training_step(self, batch, number):
        loss = (self.net(batch[0]) ** 2).mean()
        self.log("loss", loss)
        return loss
    def validation_step(self, batch, number):
        self.log("val", (self.net(batch[0]) ** 2).mean(), sync_dist=True)
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)

data = DataLoader(TensorDataset(torch.randn(1024, 64)), 16)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
settings = dict(max_steps=20, val_check_interval=5, limit_val_batches=4, gradient_clip_val=1.0)
devices = int(os.environ.get("WORLD_SIZE", "1"))
L.Trainer(accelerator="cpu", devices=devices, strategy="ddp", **settings, **quiet).fit(Net(), data, data)
print("trained")
"""

_ACCELERATE = """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
data = DataLoader(TensorDataset(torch.randn(1280, 64)), 16)
model, optimizer, data, scheduler = accelerator.prepare(model, optimizer, data, scheduler)
model.train()
for (x,) in data:
    with accelerator.accumulate(model):
        loss = (model(x) ** 2).mean()
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
accelerator.end_training()
print("trained")
"""

SCRIPTS = {
    "nanogpt": _NANOGPT,
    "tutorial": _TUTORIAL,
    "mingpt": _MINGPT,
    "fsdp2": _FSDP2,
    "tensor-parallel": _TENSOR_PARALLEL,
    "imagenet": _IMAGENET,
    "dcgan": _DCGAN,
    "trainer": _TRAINER,
    "lightning": _LIGHTNING,
    "accelerate": _ACCELERATE,
}
FRAMEWORKS = {"trainer": "transformers", "lightning": "lightning", "accelerate": "accelerate"}
"""The package that a script needs."""
OPTIMIZERS = {"dcgan": 2}
"""How many optimizers step in a pass of the loop, where that is not one."""
