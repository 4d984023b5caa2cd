// Shows the changes of an observation: fetches this page again after each event, and replaces the parts that differ.
"use strict";
(() => {
  let isBusy = false;
  let isWanted = false;
  const stale = document.getElementById("stale");

  const isSelected = (part) => {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && selection.containsNode(part, true);
  };

  const replace = (fresh) => {
    document.title = fresh.title;
    for (const old of document.querySelectorAll("[data-part]")) {
      const part = fresh.querySelector(`[data-part="${old.dataset.part}"]`);
      if (!part || part.outerHTML === old.outerHTML || isSelected(old)) {
        continue;
      }
      // The focus stays on the same link, or on the same area.
      const focused = old.contains(document.activeElement) ? document.activeElement : null;
      const all = focused ? [...old.querySelectorAll("a, [tabindex]")] : [];
      const name = (element) => element.id || element.getAttribute("href");
      const scrolled = [...old.querySelectorAll(".scroll")].map((area) => area.scrollLeft);
      old.replaceWith(document.adoptNode(part));
      part.querySelectorAll(".scroll").forEach((area, at) => { area.scrollLeft = scrolled[at] || 0; });
      if (all.includes(focused)) {
        const same = [...part.querySelectorAll("a, [tabindex]")].find((element) => name(element) === name(focused));
        (same || document.getElementById("main")).focus({ preventScroll: true });
      }
    }
  };

  const refresh = async () => {
    isWanted = true;
    if (isBusy || document.hidden) {
      return;
    }
    isBusy = true;
    while (isWanted && !document.hidden) {
      isWanted = false;
      try {
        const reply = await fetch(location.href, { cache: "no-store" });
        if (reply.ok) {
          replace(new DOMParser().parseFromString(await reply.text(), "text/html"));
          stale.hidden = true;
        }
      } catch {
        stale.hidden = false;
      }
    }
    isBusy = false;
  };

  const events = new EventSource("/events");
  events.onmessage = refresh;
  events.onerror = () => { stale.hidden = false; };
  document.addEventListener("visibilitychange", () => { if (isWanted) { refresh(); } });
})();
