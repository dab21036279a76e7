// Pictures much wider than high get room to scroll on phones (pages.css).
document.addEventListener("DOMContentLoaded", () => {
  for (const picture of document.querySelectorAll(".bd-article img")) {
    const mark = () => picture.classList.toggle("wide", picture.naturalWidth > 1.7 * picture.naturalHeight);
    picture.addEventListener("load", mark);
    mark();
  }
});
