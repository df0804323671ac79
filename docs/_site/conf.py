"""Sphinx's configuration of the site that `make docs` builds: `sphinx -c docs/_site docs OUTPUT`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import generate
import links
import pictures
import treadle

project = "Treadle"
author = "The authors of Treadle"
version = release = treadle.__version__
html_title = f"Treadle {release}"

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
]
exclude_patterns = ["_site", "_build", "hosting"]
default_role = "code"
nitpicky = False
# What a clone has beside the site: index pages of its own.
suppress_warnings = ["toc.excluded", "myst.header"]

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_links_external_new_tab = False

autodoc_typehints = "none"
autosummary_generate = False
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme = "pydata_sphinx_theme"
html_context = {"default_mode": "auto"}
html_favicon = "static/favicon.svg"
html_use_index = False
html_show_sourcelink = False
html_copy_source = False
html_permalinks_icon = "#"
html_sidebars = {"index": []}
html_theme_options = {
    "logo": {"text": "Treadle"},
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "show_toc_level": 2,
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": True,
    "navigation_with_keys": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "back_to_top_button": False,
}
copyright = "the authors of Treadle, Apache License 2.0"  # noqa: A001


def setup(app: Any) -> None:
    # Before Sphinx looks for pages.
    app.connect("builder-inited", generate.all_pages, priority=100)
    app.connect("source-read", links.for_site)
    app.connect("autodoc-process-docstring", links.for_docstring)
    app.add_directive("picture", pictures.Picture)
