"""The Grafana dashboards as code: `python -m scripts.dashboards` writes them into the chart."""
