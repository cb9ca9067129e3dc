"""The label party."""

from flower_vfl import make_server_app
from flower_vfl.reports import log_report
from own_app.task import make_bottom, make_top, open_data

app = make_server_app(top=make_top, bottom=make_bottom, data=open_data, on_result=log_report)
