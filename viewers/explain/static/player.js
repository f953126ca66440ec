/** Where an animation stands: between steps, playing or not. It knows neither the page nor the picture. */

/** Seconds for one step at speed 1, and the pause after it, in which the result can be read. */
const MOVE = 1.1, REST = 0.5;

export class Player {
  /**
   * `still`: jump from step to step instead of moving, for readers who ask for reduced motion. `tell` is called with the
   * player after each change.
   */
  constructor(steps, still = false, tell = () => {}) {
    Object.assign(this, { steps, still, tell, speed: 1, playing: false, position: 0, rested: 0 });
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
    this.tell(this);
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
    this.tell(this);
  }

  toggle() {
    if (!this.playing && this.position >= this.steps) this.go(0);
    this.playing = !this.playing;
    this.rested = this.still ? 0 : REST;
    this.tell(this);
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
    this.tell(this);
  }
}
