// What scrolls in itself can be reached by the keyboard: tables, in the wraps that the
// theme gives them on loading, and long formulas.
document$.subscribe(() => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .formula")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0
  }
})
