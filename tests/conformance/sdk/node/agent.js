/**
 * Runs with the official Node.js SDK and does what it is told, line by line.
 *
 * A command is one JSON object on stdin: {"seq": N, "do": NAME, "id": CLIENT, …}. Commands run side by side. The answer
 * is one JSON object on stdout, {"seq": N, "answer": …} or {"seq": N, "error": CLASS, "code": …, "text": …}. What the SDK
 * calls back becomes lines of its own: {"event": "delivered", …}, {"event": "check", …}. Knows nothing of the tests.
 * An exception that the SDK lets go ends the process, as it would end a user's.
 */
'use strict';

const readline = require('node:readline');
const {
  ClientException, ConsumeResult, FilterExpression, LitePushConsumerImpl, OffsetOption, Producer, PushConsumer,
  SimpleConsumer,
} = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

// On a busy machine the default of 3 s passes now and then: the SDK sends again, and the message is there twice.
const REQUEST_TIMEOUT_MS = 10_000;
const [ endpoints, accessKey, accessSecret ] = process.argv.slice(2);
const options = {
  endpoints, namespace: '', requestTimeout: REQUEST_TIMEOUT_MS,
  sessionCredentials: accessKey || accessSecret ? { accessKey, accessSecret } : undefined,
  sslEnabled: 'SDK_TLS' in process.env, // and it trusts what gRPC trusts
};
const clients = new Map();
const received = new Map(); // by client and message id
const transactions = new Map();

const say = line => process.stdout.write(JSON.stringify(line) + '\n');
const sleep = seconds => new Promise(resolve => setTimeout(resolve, seconds * 1000));

// A class of consumers that say why they give a message back. The SDK makes the headers of a request as it sends it.
const reasoned = Consumer => class extends Consumer {
  reasons = new Map(); // message id → reason, description
  #failure = null;

  getRequestMetadata() {
    const metadata = super.getRequestMetadata();
    if (this.#failure) {
      metadata.set('x-aerobee-reason', encodeURIComponent(this.#failure[0]));
      metadata.set('x-aerobee-description', encodeURIComponent(this.#failure[1]));
    }
    return metadata;
  }

  #because(messageId, call) {
    this.#failure = this.reasons.get(messageId) ?? null;
    try {
      return call();
    } finally {
      this.#failure = null;
    }
  }

  changeInvisibleDuration(message, ms) {
    return this.#because(message.messageId, () => super.changeInvisibleDuration(message, ms));
  }

  changeInvisibleDurationViaRpc(endpoints, request, timeout) {
    return this.#because(request.getMessageId(), () => super.changeInvisibleDurationViaRpc(endpoints, request, timeout));
  }
};

const described = message => ({
  message_id: message.messageId,
  topic: message.topic,
  body: message.body.toString(),
  size: message.body.length,
  tag: message.tag || null,
  keys: [ ...message.keys ].sort(),
  properties: Object.fromEntries(message.properties),
  group: message.messageGroup || null,
  lite: message.liteTopic || null,
  priority: message.priority ?? null,
  attempt: message.deliveryAttempt,
  corrupted: Boolean(message.corrupted),
  at: Date.now() / 1000,
});

const filters = subscriptions => new Map(Object.entries(subscriptions).map(
  ([ topic, [ kind, expression ]]) => [ topic, new FilterExpression(expression, FilterType[kind]) ]));

// Succeeds from call `succeed_from` of a message on; at once for bodies that are not in `only`, when given.
const listener = (id, { succeed_from: succeedFrom = 1, only = null, sleep_s: sleepS = 0, because = null }) => {
  const calls = new Map();
  return {
    async consume(message) {
      const call = (calls.get(message.messageId) ?? 0) + 1;
      calls.set(message.messageId, call);
      say({ event: 'delivered', id, call, ...described(message) });
      if (sleepS) await sleep(sleepS);
      const concerned = only === null || only.includes(message.body.toString());
      if (because) clients.get(id).reasons.set(message.messageId, because);
      return concerned && call < succeedFrom ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    },
  };
};

// Where a group begins in a lite topic: [ kind, value ].
const begin = ([ kind, value ]) => ({
  policy: () => OffsetOption[`${value}_OFFSET`],
  offset: () => OffsetOption.ofOffset(value),
  tail: () => OffsetOption.ofTailN(value),
  timestamp: () => OffsetOption.ofTimestamp(value),
}[kind]());

async function started(id, client) {
  clients.set(id, client);
  await client.startup();
}

const commands = {
  producer({ id, topics, resolution }) {
    const checker = resolution && {
      async check(message) {
        say({ event: 'check', id, ...described(message) });
        return TransactionResolution[resolution] ?? TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED;
      },
    };
    return started(id, new Producer({ ...options, topics, checker }));
  },

  async send({
    id, topic, body, size, tag, keys, group, lite, deliver_at: deliverAt, priority, properties, transaction,
  }) {
    const message = { topic, body: body === undefined ? Buffer.alloc(size) : Buffer.from(body) };
    if (tag) message.tag = tag;
    if (keys) message.keys = [ keys ].flat();
    if (group) message.messageGroup = group;
    if (lite) message.liteTopic = lite;
    if (deliverAt !== undefined) message.deliveryTimestamp = new Date(deliverAt * 1000);
    if (priority !== undefined) message.priority = priority;
    if (properties) message.properties = new Map(Object.entries(properties));
    if (transaction !== undefined) transactions.set(transaction, clients.get(id).beginTransaction());
    const receipt = await clients.get(id).send(message, transactions.get(transaction));
    return {
      message_id: receipt.messageId,
      offset: receipt.offset,
      transaction_id: receipt.transactionId,
      recall_handle: receipt.recallHandle,
    };
  },

  commit: ({ transaction }) => transactions.get(transaction).commit(),
  rollback: ({ transaction }) => transactions.get(transaction).rollback(),
  recall: async ({ id, topic, handle }) => (await clients.get(id).recallMessage(topic, handle)).messageId,

  simple({ id, group, subscriptions, await_s: awaitS }) {
    return started(id, new (reasoned(SimpleConsumer))({
      ...options, consumerGroup: group, subscriptions: filters(subscriptions), awaitDuration: awaitS * 1000,
    }));
  },

  async receive({ id, most, invisible_s: invisibleS }) {
    const messages = await clients.get(id).receive(most, invisibleS * 1000);
    for (const message of messages) received.set(`${id} ${message.messageId}`, message);
    return messages.map(described);
  },

  ack: ({ id, message_id: messageId }) => clients.get(id).ack(received.get(`${id} ${messageId}`)),
  change({ id, message_id: messageId, invisible_s: invisibleS, because }) {
    if (because) clients.get(id).reasons.set(messageId, because);
    return clients.get(id).changeInvisibleDuration(received.get(`${id} ${messageId}`), invisibleS * 1000);
  },

  push({ id, group, subscriptions, ...how }) {
    return started(id, new (reasoned(PushConsumer))({
      ...options, consumerGroup: group, subscriptions: filters(subscriptions), messageListener: listener(id, how),
    }));
  },

  lite({ id, group, topic, ...how }) {
    return started(id, new LitePushConsumerImpl({
      ...options, consumerGroup: group, bindTopic: topic, messageListener: listener(id, how),
    }));
  },

  async subscribe({ id, lite, offset }) {
    for (const name of lite) await clients.get(id).subscribeLite(name, offset && begin(offset));
  },

  async unsubscribe({ id, lite }) {
    for (const name of lite) await clients.get(id).unsubscribeLite(name);
  },

  subscribed: ({ id }) => [ ...clients.get(id).getLiteTopicSet() ].sort(),

  close({ id }) {
    const client = clients.get(id);
    clients.delete(id);
    return client.shutdown();
  },
};

async function obey({ seq, do: name, ...command }) {
  try {
    say({ seq, answer: (await commands[name](command)) ?? null });
  } catch (error) {
    // gRPC's errors have codes of their own numbering. A failed start wraps what was the reason.
    const code = [ error, error.cause ].find(one => one instanceof ClientException)?.code ?? null;
    say({ seq, error: error.constructor.name, code, text: String(error.message) });
  }
}

readline.createInterface({ input: process.stdin }).on('line', line => obey(JSON.parse(line)))
  .on('close', () => process.exit());
say({ event: 'ready' });
