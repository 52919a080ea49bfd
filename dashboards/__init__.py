"""The perfkit dashboard; installed as `perfkit_dashboards`."""
