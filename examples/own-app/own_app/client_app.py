"""The feature party."""

from flower_vfl import make_client_app
from own_app.task import make_bottom, open_data

app = make_client_app(bottom=make_bottom, data=open_data)
