// The messages of the open conversation. Follows the end while a reply grows, unless the reader has scrolled up.

import {icon} from "./dom.js";
import {MessageView} from "./message_view.js";

const NEAR = 80; // pixels from the end that count as "at the end"

export class ThreadView {
  #views = new Map();
  #conversation = null;
  #following = true;
  #slow = 0; // milliseconds that the last drawing took; the next waits in proportion
  #drawn = 0;
  #planned = false;
  #growing = null; // the message that was last seen being written
  #layout = ""; // what the last full drawing showed

  // announce(text): for screen readers. run(id): the reply being made.
  constructor({scroller, list, jump, welcome, actions, announce, run}) {
    Object.assign(this, {scroller, list, jump, welcome, actions, announce, run});
    scroller.addEventListener("scroll", () => {
      this.#following = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR;
      this.jump.hidden = this.#following;
    }, {passive: true});
    jump.append(icon("down"));
    jump.addEventListener("click", () => this.toEnd());
    new ResizeObserver(() => this.#follow()).observe(list);
  }

  show(conversation) {
    this.#conversation = conversation;
    this.#views.clear();
    this.#growing = null;
    this.list.replaceChildren();
    this.#following = true;
    this.#draw();
    this.toEnd();
  }

  // Something of the conversation has changed: drawn with the next frame.
  changed() {
    if (this.#planned) return;
    this.#planned = true;
    const wait = Math.max(0, this.#drawn + 4 * this.#slow - performance.now());
    const next = () => {
      this.#planned = false;
      this.#draw();
    };
    // Frames are not drawn in the background; the text must still be there when the tab comes back.
    if (wait > 16 || document.hidden) setTimeout(next, Math.max(wait, 16));
    else requestAnimationFrame(next);
  }

  toEnd() {
    this.#following = true;
    this.jump.hidden = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  view(id) {
    return this.#views.get(id);
  }

  #follow() {
    if (this.#following) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  #draw() {
    const start = performance.now();
    const conversation = this.#conversation;
    const path = conversation?.path() ?? [];
    this.welcome.hidden = path.length > 0;
    const run = conversation ? this.run(conversation.id) : null;
    // A token changes one message; all others are looked at only when the thread itself has changed.
    const layout = `${conversation?.id} ${conversation?.record.leaf} ${path.length}`;
    const only = run && this.#growing === run.message.id && this.#layout === layout ? run.message : null;
    this.#layout = layout;
    if (run) this.#growing = run.message.id;
    const shown = new Set(path.map(({id}) => id));
    for (const [id, view] of this.#views) {
      if (shown.has(id)) continue;
      view.element.remove();
      this.#views.delete(id);
    }
    path.forEach((message, i) => {
      if (only && message !== only) return;
      let view = this.#views.get(message.id);
      if (!view) {
        view = new MessageView(message, this.actions);
        this.#views.set(message.id, view);
      }
      if (this.list.children[i] !== view.element) this.list.insertBefore(view.element, this.list.children[i] ?? null);
      const said = view.update(message, {
        run: run?.message === message ? run : null,
        siblings: conversation.siblings(message),
        last: i === path.length - 1,
        locked: run !== null,
      });
      if (message.id === this.#growing && said.length > 0) this.announce(said.map((element) => element.textContent).join("\n"));
    });
    if (!run) this.#growing = null;
    this.#follow();
    this.#drawn = performance.now();
    this.#slow = this.#drawn - start;
  }
}
