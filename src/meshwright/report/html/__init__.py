"""A report as one HTML page: figures drawn as SVG, sections as data, one template."""
