// Shows the notebook's widgets on a page of the book, with neither a kernel nor a network.
//
// Jupyter saves the state of every widget in the notebook, and the book copies that state into the
// page. The function `ipywidgets`, which tools/vendor.py makes, holds the widgets' own program.
// That program was written to run inside Jupyter; here it gets stand-ins for the parts of Jupyter.
(function () {
  const VIEWS = 'script[type="application/vnd.jupyter.widget-view+json"]';
  const STATES = 'script[type="application/vnd.jupyter.widget-state+json"]';

  // Stands for any part of Jupyter: every property, and every call, gives `nothing` again.
  const nothing = new Proxy(() => {}, {
    get: (_, name) => (name === Symbol.toPrimitive ? () => "" : nothing),
    apply: () => nothing,
  });

  // The widgets' own style sheets mark a widget without a kernel as broken; this takes it back. And
  // captions inside a widget take the widget's colour, which can be read in dark mode, too.
  const STYLE = `
    .jupyter-widgets-disconnected::before { content: none; }
    .widget-subarea figcaption { color: inherit; }`;

  // Runs the widgets' program, adds its style sheets to the page, and returns its classes.
  function load() {
    let library;
    const define = (_, make) => (library = make({ uri: "" }));
    const requirejs = (_, done) => done(nothing, nothing, nothing);
    requirejs.config = () => {};
    ipywidgets(define, requirejs, nothing);
    library.load_ipython_extension();
    const style = document.createElement("style");
    style.textContent = STYLE;
    document.head.append(style);
    return library;
  }

  // Typesets the equations inside a widget, once MathJax is ready.
  async function typeset(element) {
    await window.MathJax?.startup?.promise;
    await window.MathJax?.typesetPromise?.([element]);
  }

  // Tells screen readers what the handle of each slider moves.
  function name(place) {
    for (const handle of place.querySelectorAll(".noUi-handle")) {
      const label = handle.closest(".widget-slider").querySelector(".widget-label");
      handle.setAttribute("aria-label", label?.textContent || "Choice");
    }
  }

  // Returns a maker of widgets from the saved states; a kernel would do this job in Jupyter.
  function newManager(library, states) {
    const models = {};
    async function newModel(id) {
      const { model_name, state, buffers = [] } = states[id];
      const bytes = buffers.map((b) => Uint8Array.from(atob(b.data), (c) => c.charCodeAt(0)));
      library.put_buffers(state, buffers.map((b) => b.path), bytes.map((b) => new DataView(b.buffer)));
      const Model = library[model_name];
      if (!Model) throw new Error(`The widget ${model_name} cannot be shown on a static page.`);
      const attributes = await Model._deserialize_state(state, manager);
      return new Model(attributes, { widget_manager: manager, model_id: id });
    }
    const manager = {
      get_model: (id) => (models[id] ??= newModel(id)),
      create_view: async (model, options = {}) => {
        const view = new library[model.get("_view_name")]({ model, options });
        await view.render();
        return view;
      },
      callbacks: () => ({}),
      inline_sanitize: (text) => text,
      _rendermime: { latexTypesetter: { typeset } },
    };
    return manager;
  }

  // Puts each widget right after the <script> element that marks its place.
  async function show() {
    const library = load();
    for (const state of document.querySelectorAll(STATES)) {
      const states = JSON.parse(state.textContent).state;
      const manager = newManager(library, states);
      await Promise.allSettled(Object.keys(states).map(manager.get_model)); // the links, too
      for (const mark of document.querySelectorAll(VIEWS)) {
        const id = JSON.parse(mark.textContent).model_id;
        if (!(id in states)) continue;
        const place = document.createElement("div");
        place.className = "widget-subarea"; // the theme gives it a light background in dark mode
        mark.after(place);
        try {
          const view = await manager.create_view(await manager.get_model(id));
          new MutationObserver(() => name(place)).observe(place, { childList: true, subtree: true });
          library.JupyterLuminoWidget.attach(view.luminoWidget, place);
        } catch (error) {
          place.textContent = error.message;
        }
      }
    }
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", show);
  else show();
})();
