"""The documentation site: `sphinx-build -W --keep-going docs docs/_build`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS / "extensions"))

from flower_vfl.version import VERSION  # noqa: E402

project, author = "flower-vfl", "The flower-vfl authors"
copyright = author
version = release = VERSION

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "accessible",
    "notebooks",
    "pages",
    "reference",
    "formulas",
]
root_doc = "index"
# README.md is the text of the index; JSON, scripts and templates beside the pages are none.
exclude_patterns = ["README.md", "_build", "jupyter_execute", "extensions", "**/.ipynb_checkpoints"]
smartquotes = False  # options are named in plain text too, and `--` would become a dash
nitpicky = False  # types of other packages have no page here
suppress_warnings = ["ref.python"]  # annotations name a class without its module, and some names occur twice

linkcheck_ignore = [r"https?://(127\.0\.0\.1|localhost|\[::1\])([:/]|$)"]

myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
nb_execution_mode = "off"  # `-D nb_execution_mode=force` runs the notebooks: CI does
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True, "show-inheritance": True, "ignore-module-all": True}
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # fields of named tuples would be described twice

html_theme = "furo"
html_title = f"flower-vfl {VERSION}"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_baseurl = os.environ.get("FLOWER_VFL_SITE", "")
templates_path = ["_templates"]

repository = os.environ.get("GITHUB_REPOSITORY", "")  # owner/name, which GitHub's workflows set
if repository:
    html_theme_options = {
        "source_repository": f"https://github.com/{repository}",
        "source_branch": "main",
        "source_directory": "docs/",
    }
