"""Reading without a listener: a batch job that goes on where the last one ended, and a reader."""

from datetime import UTC, datetime, timedelta

from aerobee_client import AdminClient, Message, Producer, PullConsumer

TOPIC, GROUP = "example-readings", "example-readings-g"

with AdminClient() as admin, Producer() as producer:
    admin.create_topic(TOPIC, queues=4)
    for day in ("Monday", "Tuesday"):
        producer.send_batch([Message(TOPIC, b"%s %d" % (day.encode(), n)) for n in range(10)])
        # A member of a group reads to the ends that the queues have now, and then it is over.
        with PullConsumer(GROUP) as job:
            job.subscribe(TOPIC)
            print(day, sorted(message.body.decode() for message in job.read_to_end()))

# Without a group: reads what it wants, from where it wants, and leaves no trace.
with PullConsumer() as reader:
    reader.assign(reader.fetch_message_queues(TOPIC))
    reader.seek_to_time(datetime.now(UTC) - timedelta(minutes=1))
    seen = 0
    while messages := reader.poll(max_messages=8, timeout=timedelta(seconds=1)):
        seen += len(messages)
    print("the reader has seen", seen, "messages; behind by", sum(reader.lag().values()))
