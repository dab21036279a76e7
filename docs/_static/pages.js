// Pictures much wider than high, or with many details, get room to scroll on phones (pages.css).
document.addEventListener("DOMContentLoaded", () => {
  for (const picture of document.querySelectorAll(".bd-article img")) {
    const mark = () => {
      const { naturalWidth: width, naturalHeight: height } = picture;
      picture.classList.toggle("wide", width > (width > 750 ? 1.25 : 1.7) * height);
    };
    picture.addEventListener("load", mark);
    mark();
  }
});
