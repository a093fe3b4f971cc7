// A box that scrolls sideways must be reachable from the keyboard, or its end cannot be read there.
function reachable() {
  const boxes = "mjx-container, div.math, .pst-scrollable-table-container, .output, pre";
  for (const box of document.querySelectorAll(`.bd-article :is(${boxes})`)) {
    if (box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).overflowX !== "visible") {
      box.tabIndex = 0;
    }
  }
}
addEventListener("load", () => {
  (window.MathJax?.startup?.promise ?? Promise.resolve()).then(reachable);
  addEventListener("resize", reachable);
});
