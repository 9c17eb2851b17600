"""How the site is built: Sphinx reads this file (`make docs`)."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))  # site_pages.py and from_code.py beside this file

from dpfedmeta.core.version import __version__  # noqa: E402

project = "dpfedmeta"
author = "The dpfedmeta authors"
copyright = "The dpfedmeta authors, Apache-2.0"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "site_pages"]
exclude_patterns = ["_build", "notebooks/*.ipynb"]
smartquotes = False  # they would make one dash of the two of an option
highlight_language = "none"  # blocks of commands; a block of Python says so

myst_heading_anchors = 4  # links to headings are checked by these names, which are GitHub's
myst_enable_extensions = ["html_image"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
default_role = "code"  # single backquotes in docstrings

html_theme = "furo"
html_title = f"dpfedmeta {__version__}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
html_search_scorer = str(DOCS / "search_scorer.js")
html_show_sourcelink = False
html_copy_source = False
# Colours of the figures (who-sees-what.svg, report.html). System fonts: nothing is loaded from elsewhere.
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0f5c8c", "color-brand-content": "#0f5c8c"},
    "dark_css_variables": {"color-brand-primary": "#7cc0ea", "color-brand-content": "#7cc0ea"},
}
