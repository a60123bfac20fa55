"""The report of a job: one HTML file that needs nothing else.

gather      everything it shows, by queries and downloads
tokens      token ids -> prompt, calls, observations, answer (byte-level or by tokenizer.json)
charts      numbers -> SVG              page    everything -> HTML
picture     curves -> PNG, where matplotlib is installed
"""
