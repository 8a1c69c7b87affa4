"""An experiment that needs no engine, no GPU and no data: it only shows which generator ran."""

from __future__ import annotations

from typing import Any, override

from skyrl.train.entrypoints.main_base import BasePPOExp


class Prompts(list[dict[str, Any]]):
    """A data set of SkyRL's shape."""

    def collate_fn(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return rows


class NoEngine:
    async def wake_up(self) -> None:
        return


class OneStepTrainer:
    """Calls the generator once and writes down what it said."""

    def __init__(self, cfg: Any, generator: Any, dataset: Prompts) -> None:
        self._cfg, self._generator, self._dataset = cfg, generator, dataset
        self.tracker = None

    def build_models(self, *worker_classes: Any) -> None:
        return

    async def train(self) -> None:
        output = await self._generator.generate(
            {"prompts": [row["prompt"] for row in self._dataset]}
        )
        said = f"{self._generator.word} {len(output['response_ids'])}"
        with open(f"{self._cfg.trainer.export_path}/trained.txt", "w") as file:  # noqa: ASYNC230
            file.write(said)


class AcmeExperiment(BasePPOExp):
    @override
    def get_train_dataset(self) -> Prompts:
        message = {"role": "user", "content": "say it"}
        rows = [
            {
                "prompt": [message],
                "env_class": None,
                "env_extras": {"data_source": "acme"},
                "uid": n,
            }
            for n in ("1", "2")
        ]
        return Prompts(rows)

    @override
    def get_eval_dataset(self) -> Prompts:
        return AcmeExperiment.get_train_dataset(self)

    @override
    def get_inference_client(self) -> NoEngine:
        return NoEngine()

    @override
    def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> Any:
        from acme_office.generator import acme_echo

        return acme_echo(cfg, tokenizer, inference_engine_client)

    @override
    def get_trainer(self, *, cfg: Any, generator: Any, train_dataset: Prompts, **_: Any) -> Any:
        return OneStepTrainer(cfg, generator, train_dataset)
