"""Grades the final answer: its last number must be the expected one.

Runs inside the sandbox on the standard library, without the imports that would double its start.
"""

import json
import sys

ANSWER = "/logs/agent/answer.txt"
REWARD = "/logs/verifier/reward.json"
RESULT = "/logs/verifier/grading_results.json"


def numbers(text: str) -> list[float]:
    """All numbers of a text; commas between thousands are understood."""
    pieces = "".join(c if c.isdecimal() or c == "." else " " for c in text.replace(",", ""))
    stripped = (piece.strip(".") for piece in pieces.split())
    return [float(piece) for piece in stripped if piece and piece.count(".") < 2]


def read_answer(path: str) -> str:
    """The final answer; a run that gave none has an empty one."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def grade(
    answer: str, verifiers: list[dict[str, str]], expected: str
) -> tuple[float, dict[str, object]]:
    """The score of an answer, and the grading runner's whole result."""
    found = numbers(answer)
    score = float(bool(found) and found[-1] == float(expected))
    rationale = f"last number {found[-1]:g}" if found else "no number in the answer"
    results = [
        {
            "verifier_id": verifier["verifier_id"],
            "score": score,
            "status": "ok",
            "message": "",
            "verifier_result_values": {
                "judge_grade": "pass" if score else "fail",
                "grade_rationale": rationale,
            },
        }
        for verifier in verifiers
    ]
    return score, {
        "grading_run_status": "completed",
        "verifier_results": results,
        "scoring_results": {"final_score": score},
    }


def main(tests: str) -> None:
    """Grade the run; ``tests`` is the folder with the expected answer."""
    with open(f"{tests}/verifiers.json") as file:
        verifiers = json.load(file)
    with open(f"{tests}/golden_responses.json") as file:
        expected = json.load(file)[0]["response"]
    score, result = grade(read_answer(ANSWER), verifiers, expected)
    with open(RESULT, "w") as file:
        json.dump(result, file)
    with open(REWARD, "w") as file:
        json.dump({"reward": score}, file)


if __name__ == "__main__":
    main(sys.argv[1])
