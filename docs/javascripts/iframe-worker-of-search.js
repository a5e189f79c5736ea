// The search of a page that was opened from the file system: browsers start no Worker there, so its script runs in a
// hidden frame. The theme's search asks for `IFrameWorker` to know that its own importScripts loads one file at a time.
if (location.protocol === "file:") {
  const inFrame = () => {
    const frame = window;
    frame.postMessage = (message) => parent.postMessage(message, "*");
    frame.importScripts = async (...urls) => {
      for (const src of urls) {
        await new Promise((loaded) => document.body.append(Object.assign(document.createElement("script"), { src, onload: loaded })));
      }
    };
  };

  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = Object.assign(document.createElement("iframe"), { hidden: true });
      document.body.append(this.frame);
      const inside = this.frame.contentDocument;
      inside.open();
      inside.write(`<body><script>(${inFrame})()</script><script src="${new URL(url, location)}"></script></body>`);
      inside.close();
      this.ready = new Promise((loaded) => this.frame.contentWindow.addEventListener("load", loaded));
      addEventListener("message", ({ data, source }) => {
        if (this.frame.contentWindow === source) this.dispatchEvent(new MessageEvent("message", { data }));
      });
    }

    async postMessage(message) {
      await this.ready;
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: structuredClone(message) }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
