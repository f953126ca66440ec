/** Where an animation stands: between steps, playing or not. It knows neither the page nor the picture. */

/** Seconds for one step at speed 1, and the pause after it, in which the result can be read. */
const MOVE = 1.1, REST = 0.5;

export class Player {
  #listeners = [];

  /** `still`: jump from step to step instead of moving, for readers who ask for reduced motion. */
  constructor(steps, still = false) {
    Object.assign(this, { steps, still, speed: 1, playing: false, position: 0, rested: 0 });
  }

  follow(listen) {
    this.#listeners.push(listen);
    listen(this);
  }

  /** The number of steps that are over, and how far the next one is, from 0 to 1. */
  get done() {
    return Math.floor(this.position);
  }

  get part() {
    return this.position - this.done;
  }

  go(position) {
    this.position = Math.min(this.steps, Math.max(0, position));
    this.rested = 0;
    this.#tell();
  }

  /** One step on or back; a step under way counts as not done. */
  next() {
    this.pause();
    this.go(this.done + 1);
  }

  previous() {
    this.pause();
    this.go(Math.ceil(this.position) - 1);
  }

  pause() {
    this.playing = false;
    this.#tell();
  }

  toggle() {
    if (!this.playing && this.position >= this.steps) this.go(0);
    this.playing = !this.playing;
    this.rested = this.still ? 0 : REST;
    this.#tell();
  }

  /** Let this many seconds pass. */
  pass(seconds) {
    if (!this.playing) return;
    const time = seconds * this.speed;
    if (this.part === 0 && this.rested < REST + (this.still ? MOVE : 0)) {
      this.rested += time;
    } else if (this.still || this.part + time / MOVE >= 1) {
      this.position = Math.min(this.steps, this.done + 1);
      this.rested = 0;
    } else {
      this.position += time / MOVE;
    }
    if (this.position >= this.steps) this.playing = false;
    this.#tell();
  }

  #tell() {
    for (const listen of this.#listeners) listen(this);
  }
}
