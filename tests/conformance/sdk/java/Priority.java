import java.lang.reflect.Method;
import java.util.Optional;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;

/** The priority of a message, which older SDKs do not know: called by name, so that one agent fits all. */
final class Priority {
    private Priority() {}

    /** Throws UnsupportedOperationException when the SDK has no priorities. */
    static void set(MessageBuilder builder, int priority) {
        call(MessageBuilder.class, "setPriority", builder, new Class<?>[] {int.class}, priority);
    }

    /** Null for none. */
    static Integer of(MessageView message) {
        try {
            return (Integer) ((Optional<?>) call(MessageView.class, "getPriority", message, new Class<?>[0]))
                    .orElse(null);
        } catch (UnsupportedOperationException before) {
            return null;
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
