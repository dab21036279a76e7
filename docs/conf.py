"""How the documentation is built: ``make docs``. Pages are Markdown (MyST); tutorials are executed."""

import html
import os
import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

import nbformat

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "log1pnmf"
author = "log1pnmf developers"
version = release = installed_version("log1pnmf").partition("+")[0]
copyright = f"log1pnmf developers. Version {version}"  # noqa: A001

extensions = [
    "command_reference",
    "import_picture",
    "measured",
    "myst_nb",
    "native_math",
    "numpydoc",
    "parameter_defaults",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "_ext", "_tables", "**/.ipynb_checkpoints"]

# Pages. Links with #fragments find headings down to the third level.
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
myst_links_external_new_tab = True
# A page's own text blocks need no colours, and shell sessions no lexer of their own.
highlight_language = "none"

# Tutorials are executed while the pages are built, and again only when they have changed.
nb_execution_mode = "cache"
nb_execution_cache_path = str(Path(__file__).parent / "_build" / "jupyter_cache")
nb_execution_timeout = 300
nb_execution_in_temp = True  # as after "pip install": nothing of the repository is at hand
nb_output_stderr = "error"  # a warning on a page is a defect
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_execution_show_tb = True
os.environ["TQDM_DISABLE"] = "1"  # pages show results, not progress

# The API, from the docstrings: also of inherited members, up to those of scikit-learn and of Python.
autosummary_generate = True
templates_path = ["_templates"]
OTHERS = "BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseException, tuple"
autodoc_default_options = {"members": True, "inherited-members": OTHERS, "member-order": "bysource"}
autodoc_typehints = "none"  # the docstrings have more
numpydoc_show_class_members = False
numpydoc_validation_checks: set[str] = set()
default_role = "py:obj"
smartquotes = False  # they would change "auto" in lists of choices


def leave_out(app, what, name, item, *_):
    """Leave out what scikit-learn gives every estimator: its own pages have more."""
    return True if (getattr(item, "__module__", None) or "").startswith("sklearn.") else None


def describe(app, pagename, templatename, context, doctree):
    """Give every page a description for search engines: its own, or its first paragraph."""
    first = doctree and next(iter(doctree.findall(lambda node: node.tagname == "paragraph")), None)
    if first and 'name="description"' not in context["metatags"]:
        text = html.escape(" ".join(first.astext().split())[:300])
        context["metatags"] += f'<meta name="description" content="{text}" />'


MOVED = {
    "architecture": "developers",
    "kernel": "developers",
    "reference-comparison": "developers/r-package",
    "sparse-form": "explanation",
    "gallery": "gallery/index",
    "anndata": "how-to",
    "big-data": "how-to",
    "choosing": "how-to",
    "command-line": "how-to",
    "gpu": "how-to",
    "how-to-r": "how-to/r",
    "markers": "how-to",
    "starts": "how-to",
    "usage": "how-to",
    "report": "reference",
    "benchmarks": "results",
}
"""Former addresses at the top level, and the folder (or the page) that has them now."""


def redirect(app, problem):
    """Write a page that leads on at every former address."""
    if problem or app.builder.format != "html":
        return
    for former, place in MOVED.items():
        page = f"{place if '/' in place else f'{place}/{former}'}.html"
        text = (
            f'<!doctype html><meta http-equiv="refresh" content="0; url={page}"><a href="{page}">Moved</a>\n'
        )
        Path(app.outdir, f"{former}.html").write_text(text, encoding="utf-8")


def tidy_notebooks(app, problem):
    """Take what only the site needs out of downloaded notebooks: hidden cells, and links to its pages."""
    for path in Path(app.outdir, "_downloads").rglob("*.ipynb"):
        notebook = nbformat.read(path, 4)
        notebook.cells = [
            cell for cell in notebook.cells if "remove-cell" not in cell.metadata.get("tags", ())
        ]
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = re.sub(r"\[([^][]+)\]\([^()\s]+\.md[^()\s]*\)", r"\1", cell.source)
        nbformat.write(notebook, path)


def setup(app):
    app.connect("autodoc-skip-member", leave_out)
    app.connect("html-page-context", describe)
    app.connect("build-finished", redirect)
    app.connect("build-finished", tidy_notebooks)


html_math_renderer = "native"
html_theme = "pydata_sphinx_theme"
html_title = "log1pnmf"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_js_files = ["pages.js"]
html_show_sourcelink = False
html_copy_source = False
html_context = {"default_mode": "light"}
html_theme_options = {
    "logo": {"text": "log1pnmf"},
    "navbar_align": "left",
    "navigation_with_keys": False,
    "show_nav_level": 1,
    "show_toc_level": 2,
    "header_links_before_dropdown": 6,
    "navbar_persistent": ["search-button"],
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
    "pygments_dark_style": "github-dark",
}
html_sidebars = {"index": [], "gallery/index": []}

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
