// Pictures much wider than high, or with many details, get room to scroll on phones (pages.css).
document.addEventListener("DOMContentLoaded", () => {
  for (const picture of document.querySelectorAll(".bd-article img")) {
    const mark = () => {
      const { naturalWidth: width, naturalHeight: height } = picture;
      picture.classList.toggle("wide", width > (width > 600 ? 1.15 : 1.7) * height);
    };
    picture.addEventListener("load", mark);
    mark();
  }
  // Tables that scroll anyway give long texts room instead of a tall, narrow cell.
  for (const table of document.querySelectorAll(".pst-scrollable-table-container")) {
    if (table.scrollWidth <= table.clientWidth + 2) continue;
    for (const cell of table.querySelectorAll("td")) cell.classList.toggle("long", cell.textContent.length > 60);
  }
  // What is wider than the page fades towards the edge behind which it goes on.
  for (const box of document.querySelectorAll(".pst-scrollable-table-container, .cell_output .text_html, .highlight pre, div.formula")) {
    const mark = () => {
      box.classList.toggle("scrolls", box.scrollWidth > box.clientWidth + 2);
      box.classList.toggle("goes-on", box.scrollLeft + box.clientWidth < box.scrollWidth - 2);
    };
    box.addEventListener("scroll", mark, { passive: true });
    window.addEventListener("resize", mark);
    mark();
  }
  // The gallery begins with its pictures, each a link to its section.
  const gallery = document.querySelector("section#gallery-of-plots");
  if (!gallery) return;
  const thumbnails = document.createElement("nav");
  thumbnails.className = "thumbnails";
  for (const section of gallery.querySelectorAll(":scope > section > section")) {
    const link = document.createElement("a");
    link.href = `#${section.id}`;
    link.append(section.querySelector("img").cloneNode(), section.querySelector("h3").firstChild.textContent);
    thumbnails.append(link);
  }
  gallery.querySelector("h1").after(thumbnails);
});
