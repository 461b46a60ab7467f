"""`sleigh serve` as a process of its own. Tests and measurements use it."""
import json
import signal
import subprocess
import urllib.error
import urllib.request


class Server:
    """A server that is ready to answer, on a free port of this machine or on `port`."""

    def __init__(self, sleigh, model, *flags, port=0):
        self.process = subprocess.Popen([sleigh, "serve", "-m", model, "--port", str(port), *flags], stderr=subprocess.PIPE, text=True)
        self.code = 0  # the exit code that stop() expects
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if "listens at" in line:
                self.port = int(line.split(";")[0].rsplit(":", 1)[1])
            if "server: ready" in line:
                break
        else:
            raise AssertionError("".join(lines))
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop()

    def stop(self):
        if self.process.poll() is None and not self.code:
            self.process.send_signal(signal.SIGTERM)
        found = self.process.wait(60)
        assert found == self.code, (found, self.process.stderr.read())

    def get(self, path, body=None, headers=None):
        """(status, text)"""
        data = json.dumps(body).encode() if body is not None else None
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers or {})) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()


def table(rows, output):
    """Rows with equal keys, as a table of Markdown or as JSON."""
    if output == "json":
        return json.dumps(rows, indent=1)
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return "\n".join(lines + ["| " + " | ".join("-" if x is None else str(x) for x in row.values()) + " |" for row in rows])
