import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * Runs with the official Java SDK and does what it is told, line by line.
 *
 * <p>A command is one JSON object on stdin: {"seq": N, "do": NAME, "id": CLIENT, …}. Commands run side by side. The
 * answer is one JSON object on stdout, {"seq": N, "answer": …} or {"seq": N, "error": CLASS, "code": …, "text": …}. What
 * the SDK calls back becomes lines of its own: {"event": "delivered", …}, {"event": "check", …}. Knows nothing of the
 * tests.
 */
final class Agent {
    /** Stands in the text of the SDK's exceptions only. */
    private static final Pattern CODE = Pattern.compile("response-code=(\\d+)");

    private static final Gson JSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    private static final PrintStream OUTPUT =
            new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    private Agent() {}

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err); // what the SDK prints is no answer
        boolean credentials = arguments.length == 3 && !(arguments[1] + arguments[2]).isEmpty();
        Clients clients = new Clients(
                arguments[0],
                credentials ? new String[] {arguments[1], arguments[2]} : null,
                System.getenv().containsKey("SDK_TLS"));
        say(Map.of("event", "ready"));
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonObject command = JsonParser.parseString(line).getAsJsonObject();
            threads.submit(() -> obey(clients, command));
        }
        System.exit(0);
    }

    static void say(Map<String, ?> line) {
        String text = JSON.toJson(line);
        synchronized (OUTPUT) {
            OUTPUT.println(text);
            OUTPUT.flush();
        }
    }

    private static void obey(Clients clients, JsonObject command) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("seq", command.get("seq").getAsLong());
        try {
            line.put("answer", clients.obey(command));
        } catch (Throwable thrown) {
            // A failed start wraps what was the reason.
            String text = causes(thrown).map(String::valueOf).collect(Collectors.joining("; because of "));
            Matcher code = CODE.matcher(text);
            line.put("error", thrown.getClass().getSimpleName());
            line.put("code", code.find() ? Integer.valueOf(code.group(1)) : null);
            line.put("text", text);
        }
        say(line);
    }

    private static Stream<Throwable> causes(Throwable thrown) {
        return Stream.iterate(thrown, Objects::nonNull, Throwable::getCause);
    }
}
