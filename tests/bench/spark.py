"""Reading topics with Spark: batch against files of the same rows, on two cores against one, in
twice the tasks; the stream and the facts against the batch, and what a trigger costs that finds
nothing new. Writing them: the sink against the client, and against a writer that takes rows.

One session and one broker on this machine; each figure is the median of ROUNDS, baselines in turn.
Notes say where the processor time of a million messages went: on a machine whose cores are all
busy, that is what a ratio follows from.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from aerobee_client import AdminClient, Message, Producer
from aerobee_spark import source
from aerobee_spark.jvm.session import session
from aerobee_spark.landing.request import LandRequest
from aerobee_spark.landing.spark_landing import Landing
from aerobee_spark.reading.options import ReadOptions
from aerobee_spark.reading.planning import connect
from aerobee_spark.reading.schema import SCHEMA
from aerobee_spark.stream.reader import RocketMqStreamReader
from aerobee_spark.stream.watch import Watch
from aerobee_spark.table.files import CHECKPOINT, FactsFiles
from bench.measure import Result
from support.processes.command import children, command_line
from support.processes.service import broker_process, namesrv_and_broker, namesrv_process

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES = 1_000_000
QUEUES = 8
BATCH = 1_000
PER_TRIGGER = 200_000
ROUNDS = 3
THREADS = 2
TOPIC, COPY = "bench", "copy"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Of the writer that takes rows, which is slow.
ROWS = 100_000
ROW_NOTE = f"a writer that sends row by row, {ROWS:,} rows"
# Of the trigger: queues on two brokers, triggers that are timed, seconds that one may take.
MANY_QUEUES = 1_000
TRIGGERS = 20
TRIGGER_LIMIT_S = 0.3
TRIGGER_LIMIT_RPCS = 2


async def results() -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        return [*with_spark(path), *trigger(path)]


# ---- reading ----


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of processor time: of Java, of Spark's Python processes and of the broker.

    Java includes the programs that Hadoop starts for the files of a checkpoint, such as chmod.
    """

    java: float
    python: float
    broker: float

    def since(self, before: Spent) -> Spent:
        return Spent(
            self.java - before.java, self.python - before.python, self.broker - before.broker
        )

    def __str__(self) -> str:
        return f"{self.java:.1f} + {self.python:.1f} + {self.broker:.1f} s"


class Meter:
    """Measures the processor time of a session's JVM, of its Python processes and of a broker.

    It looks every 50 ms, because Java does not tell the time of a Python process that has ended
    from that of other programs. So a process may lack its last 50 ms.
    """

    def __init__(self, broker: int) -> None:
        """`broker`: its process id. Create it after the session."""
        self._broker = broker
        (self._java,) = (pid for pid in children(os.getpid()) if "java" in command_line(pid)[0])
        self._python: dict[int, float] = {}  # process id → seconds
        self._started: set[int] = set()  # those that Java has started, and waits for
        self._looking = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while Path(f"/proc/{self._java}").exists():
            self._look()
            time.sleep(0.05)

    def _look(self) -> None:
        with self._looking, suppress(FileNotFoundError):  # Java has ended
            for pid in _below(self._java):
                if _is_python(pid):
                    self._python[pid] = _seconds(pid)[0]
            self._started |= self._python.keys() & set(children(self._java))

    def so_far(self) -> Spent:
        self._look()
        own, ended = _seconds(self._java)
        waited = sum(
            self._python[pid] for pid in self._started if not Path(f"/proc/{pid}").exists()
        )
        java = own + max(0.0, ended - waited)
        return Spent(java, sum(self._python.values()), _seconds(self._broker)[0])


def _is_python(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return "python" in command_line(pid)[0]
    return False


def _seconds(pid: int) -> tuple[float, float]:
    """Of a process, and of its children that have ended; one that ends now is its parent's."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0, 0.0
    user, system, user_of_children, system_of_children = map(int, fields[11:15])
    return (user + system) / TICKS_PER_S, (user_of_children + system_of_children) / TICKS_PER_S


def _below(pid: int) -> Iterator[int]:
    for child in children(pid):
        yield child
        with suppress(FileNotFoundError):  # it has ended
            yield from _below(child)


@dataclass(frozen=True, slots=True)
class Bench:
    spark: SparkSession
    namesrv: str
    folder: Path
    meter: Meter

    def options(self) -> dict[str, str]:
        return {"nameServer": self.namesrv, "topic": TOPIC}

    def batch(self) -> DataFrame:
        return self.spark.read.format(source.FORMAT).options(**self.options()).load()

    def fresh(self, name: str) -> Path:
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        return path

    def read(self) -> None:
        nowhere(self.batch())

    def read_in_tasks(self, tasks: int) -> None:
        reader = self.spark.read.format(source.FORMAT).options(**self.options())
        nowhere(reader.option("minPartitions", tasks).load())

    def read_json(self) -> None:
        nowhere(self.spark.read.schema(SCHEMA).json(str(self.folder / "json")))

    def read_parquet(self) -> None:
        nowhere(self.spark.read.parquet(str(self.folder / "parquet")))

    def read_into_parquet(self) -> None:
        self.batch().write.parquet(str(self.fresh("copy")))

    def stream(self) -> None:
        rows = self.spark.readStream.format(source.FORMAT).options(
            **self.options(), maxOffsetsPerTrigger=str(PER_TRIGGER)
        )
        self._run(rows.load().writeStream.format("noop"), self.fresh("checkpoint"))

    def stream_json(self) -> None:
        """The files of `read_json`, in as many triggers as `stream`."""
        files = len(list((self.folder / "json").glob("part-*")))
        per_trigger = -(-files * PER_TRIGGER // MESSAGES)
        rows = self.spark.readStream.schema(SCHEMA)
        rows = rows.option("maxFilesPerTrigger", per_trigger)
        sink = rows.json(str(self.folder / "json")).writeStream.format("noop")
        self._run(sink, self.fresh("checkpoint-json"))

    def land(self) -> None:
        table = self.fresh("facts")
        files = FactsFiles(table)
        request = LandRequest(self.namesrv, table, topics=(TOPIC,), batch_size=PER_TRIGGER)
        files.create(request.about())
        landing = Landing(files, files.where, request, lambda step: None)
        rows = (
            self.spark.readStream.format(source.FORMAT).options(**request.stream_options()).load()
        )
        self._run(rows.writeStream.foreachBatch(landing.batch), table / CHECKPOINT)

    def write(self) -> None:
        self._written(self.rows_to_write(), source.FORMAT)

    def write_rows(self) -> None:
        self._written(self.rows_to_write().limit(ROWS), RowSource.name())

    def rows_to_write(self) -> DataFrame:
        """The messages of `fill`, out of the files, as one would have them to send."""
        rows = self.spark.read.parquet(str(self.folder / "parquet"))
        own = "map_filter(properties, (name, value) -> name LIKE 'property-%') AS properties"
        return rows.selectExpr("body", "tags", "keys", own)

    def _written(self, rows: DataFrame, form: str) -> None:
        to = {"nameServer": self.namesrv, "topic": COPY, "createTopic": "true"}
        rows.write.format(form).options(**to).mode("append").save()

    def send_batch(self) -> None:
        with Producer("bench", namesrv=self.namesrv) as producer:
            for start in range(0, MESSAGES, BATCH):
                producer.send_batch([message(start + i, COPY) for i in range(BATCH)])

    def _run(self, sink: Any, checkpoint: Path) -> None:
        query = (
            sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        )
        query.awaitTermination()


def nowhere(rows: DataFrame) -> None:
    """All columns, into Spark's sink that keeps nothing."""
    rows.write.format("noop").mode("overwrite").save()


def with_spark(folder: Path) -> list[Result]:
    data = folder / "data"
    data.mkdir()
    with namesrv_and_broker(data) as (namesrv, broker):
        fill(namesrv.address)
        with bench(folder, namesrv.address, broker.pid, THREADS) as two:
            found, two_cores = measured(two)
        with one_core(broker.pid), bench(folder, namesrv.address, broker.pid, 1) as one:
            one.read()  # the JVM is warm from here on
            rates = [rate(one.read) for _ in range(ROUNDS)]
    of_one = statistics.median(rates)
    note = f"both cores; baseline: Spark (local[1]) and broker on one core; median of {ROUNDS}"
    cores = Result(
        "spark_read_cores", "messages/s", two_cores, of_one, two_cores / of_one, 1.6, note
    )
    return [*found, cores]


@contextmanager
def bench(folder: Path, namesrv: str, broker: int, threads: int) -> Iterator[Bench]:
    scratch = folder / f"spark-{threads}"
    scratch.mkdir()
    with session(scratch, folder / "log", threads=threads, brief=False) as spark:
        source.register(spark)
        spark.dataSource.register(RowSource)
        yield Bench(spark, namesrv, folder, Meter(broker))


@contextmanager
def one_core(*others: int) -> Iterator[None]:
    """This process, what it starts, and the processes `others` have one core."""
    cores = os.sched_getaffinity(0)
    try:
        _have(others, {min(cores)})
        yield
    finally:
        _have(others, cores)


def _have(others: Iterable[int], cores: set[int]) -> None:
    for process in (os.getpid(), *others):
        for thread in Path(f"/proc/{process}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)


def fill(namesrv: str) -> None:
    with AdminClient(namesrv) as admin, Producer("bench", namesrv=namesrv) as producer:
        admin.create_topic(TOPIC, queues=QUEUES)
        for start in range(0, MESSAGES, BATCH):
            producer.send_batch([message(start + i) for i in range(BATCH)])


def message(number: int, topic: str = TOPIC) -> Message:
    """200 bytes and eight properties, those of the client counted."""
    properties = {f"property-{i}": str(number) for i in range(5)}
    keys = f"key-{number % 1000}"
    return Message(topic, bytes(200), tag=f"tag-{number % 7}", keys=keys, properties=properties)


def measured(bench: Bench) -> tuple[list[Result], float]:
    """The results, and the messages a second of a read."""
    rows = bench.batch()
    rows.write.json(str(bench.folder / "json"))
    rows.write.parquet(str(bench.folder / "parquet"))
    tasks = rows.rdd.getNumPartitions()
    works: dict[str, Callable[[], None]] = {
        "read": bench.read,
        "tasks": lambda: bench.read_in_tasks(2 * tasks),
        "json": bench.read_json,
        "parquet": bench.read_parquet,
        "copy": bench.read_into_parquet,
        "stream": bench.stream,
        "stream_json": bench.stream_json,
        "facts": bench.land,
        "write": bench.write,
        "send_batch": bench.send_batch,
        "write_rows": bench.write_rows,
    }
    with AdminClient(bench.namesrv) as admin:
        admin.create_topic(COPY, queues=QUEUES)
    rates: dict[str, list[float]] = {name: [] for name in works}
    spent: dict[str, list[Spent]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            before = bench.meter.so_far()
            rates[name].append(rate(work, ROWS if name == "write_rows" else MESSAGES))
            spent[name].append(bench.meter.so_far().since(before))
    median = {name: statistics.median(found) for name, found in rates.items()}
    costs = {name: _median(found) for name, found in spent.items()}

    def ratio(name: str, ours: str, base: str, target: float, against: str) -> Result:
        note = f"local[{THREADS}], {MESSAGES:,} messages, median of {ROUNDS}; baseline: {against}"
        if base != "write_rows":  # of fewer messages
            note += f"; processor time of Java + Python + broker {costs[ours]}, of the baseline "
            note += f"{costs[base]}"
        of, other = median[ours], median[base]
        return Result(name, "messages/s", of, other, of / other, target, note)

    results = [
        ratio("spark_read", "read", "json", 1.0, "spark.read.json with schema"),
        ratio("spark_read_parquet", "read", "parquet", 0.65, "spark.read.parquet"),
        ratio("spark_read_tasks", "tasks", "read", 0.95, "spark_read, in half the tasks"),
        ratio(
            "spark_stream",
            "stream",
            "read",
            0.7,
            "spark_read; spark.readStream.json in as many triggers has "
            f"{median['stream_json'] / median['json']:.2f} of spark.read.json",
        ),
        ratio("spark_facts", "facts", "copy", 0.7, "spark_read into Parquet"),
        ratio("spark_write", "write", "send_batch", 0.5, "send_batch of the client"),
        ratio("spark_write_rows", "write", "write_rows", 3.0, ROW_NOTE),
    ]
    return results, median["read"]


def _median(spent: Iterable[Spent]) -> Spent:
    """Of each kind of process."""
    columns = zip(*((each.java, each.python, each.broker) for each in spent), strict=True)
    return Spent(*map(statistics.median, columns))


def rate(work: Callable[[], None], messages: int = MESSAGES) -> float:
    """Messages a second."""
    start = time.perf_counter()
    work()
    return messages / (time.perf_counter() - start)


# ---- a writer that takes rows ----


class RowSource(DataSource):
    """As one would write a sink with the client: a message for each row, sends under way
    together."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq_rows"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return RowWriter(self.options["nameServer"], self.options["topic"])


class RowWriter(DataSourceWriter):
    def __init__(self, namesrv: str, topic: str) -> None:
        self.namesrv = namesrv
        self.topic = topic

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        with Producer("bench", namesrv=self.namesrv) as producer:
            sends = [
                producer.send_async(
                    Message(
                        self.topic,
                        bytes(row.body),
                        tag=row.tags,
                        keys=row.keys.split(" "),
                        properties=row.properties,
                    )
                )
                for row in iterator
            ]
            for send in sends:
                send.result()
        return WriterCommitMessage()


# ---- a trigger ----


@dataclass(slots=True)
class Counting:
    """An admin client that counts the calls that each of its methods makes."""

    admin: AdminClient
    calls: Counter[str] = field(default_factory=Counter)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.admin, name)

        def counted(*given: Any, **named: Any) -> Any:
            self.calls[name] += len(given[0]) if name == "topic_bounds" else 1
            return method(*given, **named)

        return counted


@contextmanager
def two_brokers(folder: Path) -> Iterator[str]:
    homes = [folder / name for name in ("n", "a", "b")]
    for home in homes:
        home.mkdir()
    with (
        namesrv_process(homes[0]) as namesrv,
        broker_process(homes[1], namesrv=namesrv.address),
        broker_process(homes[2], "--set=brokerName=broker-b", namesrv=namesrv.address),
    ):
        yield namesrv.address


def trigger(folder: Path) -> list[Result]:
    """Seconds and calls of `latestOffset`, where nothing is new."""
    home = folder / "trigger"
    home.mkdir()
    with two_brokers(home) as namesrv:
        with AdminClient(namesrv) as admin:
            admin.create_topic(TOPIC, queues=MANY_QUEUES // 2)
        options = ReadOptions.parse({"nameServer": namesrv, "topic": TOPIC})
        counting = Counting(connect(namesrv))
        reader = RocketMqStreamReader(options, ("topic",), Watch(counting, options))  # type: ignore[arg-type]
        try:
            start = reader.initialOffset()
            took, asked = [], []
            for _ in range(TRIGGERS):
                counting.calls.clear()
                began = time.perf_counter()
                if reader.latestOffset(start, ReadAllAvailable()) != start:
                    raise RuntimeError("there is something new in empty queues")
                took.append(time.perf_counter() - began)
                asked.append(sum(counting.calls.values()))
        finally:
            counting.admin.close()
    seconds, calls = statistics.median(took), statistics.median(asked)
    note = f"{MANY_QUEUES:,} queues of a topic on 2 brokers; worst {max(took):.3f} s; "
    note += "baseline: the limit"
    limits = (TRIGGER_LIMIT_S, TRIGGER_LIMIT_RPCS)
    return [
        Result("spark_trigger", "s", seconds, limits[0], seconds / limits[0], 1.0, note),
        Result("spark_trigger_rpcs", "calls", calls, limits[1], calls / limits[1], 1.0, note),
    ]
