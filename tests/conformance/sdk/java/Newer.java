import java.io.Closeable;
import java.lang.reflect.Method;
import java.util.Optional;
import java.util.Set;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;

/**
 * What older SDKs do not know, priorities and lite topics: called by name, so that one agent fits all. All throws
 * UnsupportedOperationException where the SDK has it not.
 */
final class Newer {
    private static final String CONSUMERS = "org.apache.rocketmq.client.apis.consumer.";
    private static final Class<?>[] NONE = {};
    private static final Class<?>[] TEXT = {String.class};

    private Newer() {}

    static void setPriority(MessageBuilder builder, int priority) {
        call(MessageBuilder.class, "setPriority", builder, new Class<?>[] {int.class}, priority);
    }

    /** Null for none, and where the SDK knows none. */
    static Integer priorityOf(MessageView message) {
        return (Integer) optional("getPriority", message);
    }

    static void setLiteTopic(MessageBuilder builder, String name) {
        call(MessageBuilder.class, "setLiteTopic", builder, TEXT, name);
    }

    /** Null for none, and where the SDK knows none. */
    static String liteTopicOf(MessageView message) {
        return (String) optional("getLiteTopic", message);
    }

    static Closeable litePushConsumer(
            ClientServiceProvider sdk,
            ClientConfiguration configuration,
            String group,
            String parent,
            MessageListener listener) {
        Object builder = call(ClientServiceProvider.class, "newLitePushConsumerBuilder", sdk, NONE);
        Class<?> type = type("LitePushConsumerBuilder");
        Class<?>[] given = {ClientConfiguration.class};
        call(type, "setClientConfiguration", builder, given, configuration);
        call(type, "setConsumerGroup", builder, TEXT, group);
        call(type, "bindTopic", builder, TEXT, parent);
        call(type, "setMessageListener", builder, new Class<?>[] {MessageListener.class}, listener);
        return (Closeable) call(type, "build", builder, NONE);
    }

    static void subscribe(Object consumer, String lite) {
        call(type("LitePushConsumer"), "subscribeLite", consumer, TEXT, lite);
    }

    /** From where the group begins: a policy and its name, or "offset", "tail", "timestamp" and a number. */
    static void subscribe(Object consumer, String lite, String kind, String value) {
        Class<?> options = type("OffsetOption");
        Object option = kind.equals("policy")
                ? constant(options, value + "_OFFSET")
                : call(options, factory(kind), null, new Class<?>[] {long.class}, Long.parseLong(value));
        Class<?>[] types = {String.class, options};
        call(type("LitePushConsumer"), "subscribeLite", consumer, types, lite, option);
    }

    static void unsubscribe(Object consumer, String lite) {
        call(type("LitePushConsumer"), "unsubscribeLite", consumer, TEXT, lite);
    }

    static Set<?> subscribed(Object consumer) {
        return (Set<?>) call(type("LitePushConsumer"), "getLiteTopicSet", consumer, NONE);
    }

    private static String factory(String kind) {
        return kind.equals("offset") ? "ofOffset" : kind.equals("tail") ? "ofTailN" : "ofTimestamp";
    }

    private static Object optional(String name, MessageView message) {
        try {
            return ((Optional<?>) call(MessageView.class, name, message, NONE)).orElse(null);
        } catch (UnsupportedOperationException before) {
            return null;
        }
    }

    private static Class<?> type(String name) {
        try {
            return Class.forName(CONSUMERS + name);
        } catch (ClassNotFoundException missing) {
            throw new UnsupportedOperationException("this SDK has no " + name);
        }
    }

    private static Object constant(Class<?> type, String name) {
        try {
            return type.getField(name).get(null);
        } catch (ReflectiveOperationException missing) {
            throw new UnsupportedOperationException("this SDK has no " + name);
        }
    }

    private static Object call(Class<?> type, String name, Object target, Class<?>[] types, Object... arguments) {
        Method method;
        try {
            method = type.getMethod(name, types);
        } catch (NoSuchMethodException missing) {
            throw new UnsupportedOperationException("this SDK has no " + name);
        }
        try {
            return method.invoke(target, arguments);
        } catch (ReflectiveOperationException failed) {
            if (failed.getCause() instanceof RuntimeException) {
                throw (RuntimeException) failed.getCause();
            }
            throw new IllegalStateException(failed);
        }
    }
}
