import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.Closeable;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.PushConsumerBuilder;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumerBuilder;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.client.java.impl.producer.SendReceiptImpl;
import org.apache.rocketmq.client.java.message.MessageViewImpl;

/** The producers and consumers of one agent, by the names that its commands give them. They start one after another. */
final class Clients {
    private static final ClientServiceProvider SDK = ClientServiceProvider.loadService();

    /** By default 3 s, which the first client needs for itself where many virtual machines load their classes at once. */
    private static final Duration REQUEST_TIMEOUT = Duration.ofSeconds(10);

    private final ClientConfiguration configuration;
    private final Map<String, Closeable> clients = new ConcurrentHashMap<>();
    private final Map<String, Transaction> transactions = new ConcurrentHashMap<>();
    /** By client and message id. */
    private final Map<String, MessageView> received = new ConcurrentHashMap<>();

    /** Credentials: access key and secret key, or null. */
    Clients(String endpoints, String[] credentials, boolean tls) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
                .setEndpoints(endpoints)
                .setRequestTimeout(REQUEST_TIMEOUT)
                .enableSsl(tls);
        if (credentials != null) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(credentials[0], credentials[1]));
        }
        configuration = builder.build();
    }

    /** Returns the answer, which may be null. */
    Object obey(JsonObject command) throws Exception {
        String name = command.get("do").getAsString();
        switch (name) {
            case "producer":
                return produce(command);
            case "send":
                return send(command);
            case "commit":
                transactions.get(text(command, "transaction")).commit();
                return null;
            case "rollback":
                transactions.get(text(command, "transaction")).rollback();
                return null;
            case "recall":
                return client(command, Producer.class)
                        .recallMessage(text(command, "topic"), text(command, "handle"))
                        .getMessageId()
                        .toString();
            case "simple":
                return consume(command);
            case "receive":
                return receive(command);
            case "ack":
                client(command, SimpleConsumer.class).ack(messageOf(command));
                return null;
            case "change":
                client(command, SimpleConsumer.class)
                        .changeInvisibleDuration(messageOf(command), seconds(command, "invisible_s"));
                return null;
            case "push":
                return listen(command);
            case "lite":
                return listenLite(command);
            case "subscribe":
                for (String lite : texts(command.get("lite"))) {
                    subscribe(command, lite);
                }
                return null;
            case "unsubscribe":
                for (String lite : texts(command.get("lite"))) {
                    Newer.unsubscribe(client(command, Closeable.class), lite);
                }
                return null;
            case "subscribed":
                return Newer.subscribed(client(command, Closeable.class)).stream().sorted().toArray();
            case "close":
                clients.remove(text(command, "id")).close();
                return null;
            default:
                throw new UnsupportedOperationException("no command " + name);
        }
    }

    private Object produce(JsonObject command) throws Exception {
        String id = text(command, "id");
        ProducerBuilder builder = SDK.newProducerBuilder()
                .setClientConfiguration(configuration)
                .setTopics(texts(command.get("topics")).toArray(new String[0]));
        if (command.has("resolution")) {
            TransactionResolution resolution = TransactionResolution.valueOf(text(command, "resolution"));
            builder.setTransactionChecker(message -> {
                tell("check", id, message, Map.of());
                return resolution;
            });
        }
        start(id, builder::build);
        return null;
    }

    private Object send(JsonObject command) throws ClientException {
        Producer producer = client(command, Producer.class);
        MessageBuilder builder = SDK.newMessageBuilder()
                .setTopic(text(command, "topic"))
                .setBody(command.has("body")
                        ? text(command, "body").getBytes(StandardCharsets.UTF_8)
                        : new byte[command.get("size").getAsInt()]);
        if (command.has("tag")) {
            builder.setTag(text(command, "tag"));
        }
        if (command.has("keys")) {
            builder.setKeys(texts(command.get("keys")).toArray(new String[0]));
        }
        if (command.has("group")) {
            builder.setMessageGroup(text(command, "group"));
        }
        if (command.has("lite")) {
            Newer.setLiteTopic(builder, text(command, "lite"));
        }
        if (command.has("deliver_at")) {
            builder.setDeliveryTimestamp(command.get("deliver_at").getAsLong() * 1000);
        }
        if (command.has("priority")) {
            Newer.setPriority(builder, command.get("priority").getAsInt());
        }
        if (command.has("properties")) {
            for (Map.Entry<String, JsonElement> property :
                    command.getAsJsonObject("properties").entrySet()) {
                builder.addProperty(property.getKey(), property.getValue().getAsString());
            }
        }
        SendReceipt receipt;
        if (command.has("transaction")) {
            Transaction transaction = producer.beginTransaction();
            transactions.put(text(command, "transaction"), transaction);
            receipt = producer.send(builder.build(), transaction);
        } else {
            receipt = producer.send(builder.build());
        }
        Map<String, Object> answer = new HashMap<>();
        answer.put("message_id", receipt.getMessageId().toString());
        answer.put("offset", ((SendReceiptImpl) receipt).getOffset());
        answer.put("transaction_id", ((SendReceiptImpl) receipt).getTransactionId());
        answer.put("recall_handle", receipt.getRecallHandle());
        return answer;
    }

    private Object consume(JsonObject command) throws Exception {
        SimpleConsumerBuilder builder = SDK.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(text(command, "group"))
                .setSubscriptionExpressions(filters(command))
                .setAwaitDuration(seconds(command, "await_s"));
        start(text(command, "id"), builder::build);
        return null;
    }

    private Object receive(JsonObject command) throws ClientException {
        List<Object> answer = new ArrayList<>();
        for (MessageView message : client(command, SimpleConsumer.class)
                .receive(command.get("most").getAsInt(), seconds(command, "invisible_s"))) {
            received.put(text(command, "id") + " " + message.getMessageId(), message);
            answer.add(described(message));
        }
        return answer;
    }

    private Object listen(JsonObject command) throws Exception {
        PushConsumerBuilder builder = SDK.newPushConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(text(command, "group"))
                .setSubscriptionExpressions(filters(command))
                .setMessageListener(listener(command));
        start(text(command, "id"), builder::build);
        return null;
    }

    private Object listenLite(JsonObject command) throws Exception {
        String group = text(command, "group");
        String parent = text(command, "topic");
        start(
                text(command, "id"),
                () -> Newer.litePushConsumer(SDK, configuration, group, parent, listener(command)));
        return null;
    }

    private void subscribe(JsonObject command, String lite) {
        Closeable consumer = client(command, Closeable.class);
        if (command.has("offset")) {
            List<String> offset = texts(command.get("offset"));
            Newer.subscribe(consumer, lite, offset.get(0), offset.get(1));
        } else {
            Newer.subscribe(consumer, lite);
        }
    }

    /** Succeeds from call `succeed_from` on; at once for bodies that are not in `only`, when given. */
    private static MessageListener listener(JsonObject command) {
        String id = text(command, "id");
        int succeedFrom = command.has("succeed_from") ? command.get("succeed_from").getAsInt() : 1;
        Set<String> only = command.has("only") ? new HashSet<>(texts(command.get("only"))) : null;
        Duration sleep = command.has("sleep_s") ? seconds(command, "sleep_s") : Duration.ZERO;
        Map<String, Integer> calls = new ConcurrentHashMap<>();
        return message -> {
            int call = calls.merge(message.getMessageId().toString(), 1, Integer::sum);
            tell("delivered", id, message, Map.of("call", call));
            try {
                Thread.sleep(sleep.toMillis());
            } catch (InterruptedException interrupted) {
                return ConsumeResult.FAILURE;
            }
            boolean concerned = only == null || only.contains(body(message));
            return concerned && call < succeedFrom ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        };
    }

    private void start(String id, Callable<Closeable> build) throws Exception {
        synchronized (clients) {
            clients.put(id, build.call());
        }
    }

    private <T> T client(JsonObject command, Class<T> kind) {
        return kind.cast(clients.get(text(command, "id")));
    }

    private MessageView messageOf(JsonObject command) {
        return received.get(text(command, "id") + " " + text(command, "message_id"));
    }

    private static void tell(String event, String id, MessageView message, Map<String, ?> more) {
        Map<String, Object> line = described(message);
        line.put("event", event);
        line.put("id", id);
        line.putAll(more);
        Agent.say(line);
    }

    private static Map<String, Object> described(MessageView message) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("message_id", message.getMessageId().toString());
        line.put("topic", message.getTopic());
        line.put("body", body(message));
        line.put("size", message.getBody().remaining());
        line.put("tag", message.getTag().orElse(null));
        line.put("keys", message.getKeys().stream().sorted().toArray());
        line.put("properties", message.getProperties());
        line.put("group", message.getMessageGroup().orElse(null));
        line.put("lite", Newer.liteTopicOf(message));
        line.put("priority", Newer.priorityOf(message));
        line.put("attempt", message.getDeliveryAttempt());
        line.put("corrupted", ((MessageViewImpl) message).isCorrupted());
        line.put("at", System.currentTimeMillis() / 1000.0);
        return line;
    }

    private static String body(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody().duplicate()).toString();
    }

    private static Map<String, FilterExpression> filters(JsonObject command) {
        Map<String, FilterExpression> filters = new HashMap<>();
        for (Map.Entry<String, JsonElement> subscription :
                command.getAsJsonObject("subscriptions").entrySet()) {
            JsonArray filter = subscription.getValue().getAsJsonArray();
            boolean sql = filter.get(0).getAsString().equals("SQL");
            filters.put(
                    subscription.getKey(),
                    new FilterExpression(
                            filter.get(1).getAsString(),
                            sql ? FilterExpressionType.SQL92 : FilterExpressionType.TAG));
        }
        return filters;
    }

    private static String text(JsonObject command, String field) {
        return command.get(field).getAsString();
    }

    /** Of a list, or of a single text. */
    private static List<String> texts(JsonElement value) {
        List<String> texts = new ArrayList<>();
        if (value.isJsonArray()) {
            value.getAsJsonArray().forEach(text -> texts.add(text.getAsString()));
        } else {
            texts.add(value.getAsString());
        }
        return texts;
    }

    private static Duration seconds(JsonObject command, String field) {
        return Duration.ofMillis((long) (command.get(field).getAsDouble() * 1000));
    }
}
