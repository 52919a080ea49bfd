"""The perfkit dashboard; installed as `perfkit_dashboards`.

    from perfkit_dashboards.app import create_app
    create_app("runs/").run()

view.py reads and writes the URL, engine.py loads Parquet by file version, data_*.py ask it, figures*.py draw without
Dash, cards.py and pages/ lay out, app.py wires.
"""
