"""Who hangs: dumps of torch's flight recorder and of NCCL, of any job."""
