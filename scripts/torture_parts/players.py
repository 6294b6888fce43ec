"""Environment programs that sin as the reward programs do, and that speak in the name of others."""

from . import graders

TRIED = "environments that answer twice, for others, in the model's name, without end, in pieces, never end, or end and hang themselves"

# Sins of reward programs that do not depend on the form of the answer.
SAME = {sin for sin, code in (graders.RIGHT | graders.WRONG).items() if "row[" not in code and "'id'" not in code}
# Changes to the answer `right`.
WRONG = {
    "other-episode": "episode=10**9", "negative-episode": "episode=-1", "other-turn": "turn=7", "begins-again": "message='1'",
    "infinite": "reward=1e999", "speaks-for-the-model": "messages=[{'role': 'assistant', 'content': '1'}]", "unknown-key": "rewards=1",
    "unknown-letters": "messages=[{'content': '\\x1b[2J<eos>'}]",
}  # fmt: skip
PROGRAM = """import json, os, signal, sys, time
out, held, number = sys.stdout, [], 0
def say(text):
    out.write(f"{text}\\n"); out.flush()
for text in sys.stdin:
    row = json.loads(text)
    if row["ask"] == "tools":
        say('{"tools": []}')
        continue
    begins, number = row["ask"] == "begin", number + 1
    right = {"episode": row["episode"]} | ({"message": ""} if begins else {"reward": len(row["text"]) % 2})
    if not begins and row["turn"] == 0:
        right["messages"] = [{"content": "1="}]
    right = json.dumps(right)
    if number <= START:
        say(right)
        continue
"""


class Part(graders.Part):
    right = {sin: code for sin, code in graders.RIGHT.items() if sin in SAME}
    wrong = {sin: code for sin, code in graders.WRONG.items() if sin in SAME}
    wrong |= {sin: f"say(json.dumps(json.loads(right) | dict({changed})) if not begins else right)" for sin, changed in WRONG.items()}
    program, lines, starts = PROGRAM, 16, (0, 5, 10)

    def settings(self, processes):
        own = f"{{{graders.PROCESS}, deterministic=true, workers={processes}, max_turn_length=6}}"
        return [f"environment={own}", 'reward=[{use="environment"}]']
