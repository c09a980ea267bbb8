"""The console: pages about a cluster for a browser, and the same answers as JSON.

It keeps no state. Everything that a page shows is asked from the brokers when the page is opened.
"""
