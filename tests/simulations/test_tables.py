from flower_vfl.data.catalog import CatalogEntry
from flower_vfl.simulations import tables


def test_an_install_command_is_shown_with_its_extra(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    entry = CatalogEntry("digits", "", "", None, False, "pip install 'flower-vfl[mnist]'")
    monkeypatch.setattr(tables, "available", lambda: [entry])
    tables.print_data_sets()
    assert "pip install 'flower-vfl[mnist]'" in capsys.readouterr().out
