//! Runs with the official Rust SDK and does what it is told, line by line.
//!
//! A command is one JSON object on stdin: {"seq": N, "do": NAME, "id": CLIENT, …}. Commands run side by side. The
//! answer is one JSON object on stdout, {"seq": N, "answer": …} or {"seq": N, "error": CLASS, "code": …, "text": …}.
//! What the SDK calls back becomes lines of its own: {"event": "check", …}. Knows nothing of the tests.
//! A panic of the SDK ends the task in which it happens, as it would end a user's.

mod consumers;
mod producers;

use std::collections::HashMap;
use std::env;
use std::io::{self, BufRead, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::ClientOption;
use rocketmq::error::ClientError;
use rocketmq::model::message::MessageView;
use serde_json::{json, Value};

use consumers::Consumer;
use producers::{Half, RunningProducer};

/// The SDK tries a request once, the others three times 3 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(9);

/// One that the agent answers with: of the SDK, or because a command makes no sense.
enum Failure {
    Sdk(ClientError),
    Agent(String),
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Failure::Sdk(error)
    }
}

impl Failure {
    /// The members "error", "code" (the public protocol's name of it, or null) and "text" of an answer.
    fn described(&self) -> Value {
        match self {
            Failure::Sdk(error) => {
                let code = error.context().iter().find(|(key, _)| *key == "code");
                json!({"error": "ClientError", "code": code.map(|(_, name)| name), "text": error.to_string()})
            }
            Failure::Agent(text) => json!({"error": "Agent", "code": null, "text": text}),
        }
    }
}

type Answer = Result<Value, Failure>;

/// The clients of this process by their ids, what consumers received by client and message id, and transactions that
/// are not ended.
struct Agent {
    option: ClientOption,
    producers: Mutex<HashMap<String, RunningProducer>>,
    consumers: Mutex<HashMap<String, Arc<Consumer>>>,
    received: Mutex<HashMap<(String, String), Arc<MessageView>>>,
    halves: Mutex<HashMap<String, Half>>,
}

impl Agent {
    async fn obey(self: Arc<Self>, command: Value) -> Answer {
        match text(&command, "do") {
            "producer" => self.producer(&command).await,
            "send" => self.send(&command).await,
            "commit" => self.end(&command, true).await,
            "rollback" => self.end(&command, false).await,
            "simple" => self.simple(&command).await,
            "receive" => self.receive(&command).await,
            "ack" => self.ack(&command).await,
            "close" => self.close(&command).await,
            other => Err(Failure::Agent(format!("the SDK has nothing for: {other}"))),
        }
    }

    async fn close(&self, command: &Value) -> Answer {
        let id = text(command, "id");
        let producer = self.producers.lock().unwrap().remove(id);
        let consumer = self.consumers.lock().unwrap().remove(id);
        match (producer, consumer) {
            (Some(producer), _) => producer.shutdown().await,
            (None, Some(consumer)) => consumer.shutdown().await,
            (None, None) => Err(none_such("client", id)),
        }
    }
}

fn none_such(kind: &str, name: &str) -> Failure {
    Failure::Agent(format!("there is no such {kind}: {name}"))
}

/// A text member of a command; "" where it has none.
fn text<'a>(command: &'a Value, name: &str) -> &'a str {
    command[name].as_str().unwrap_or_default()
}

/// A member of a command that is a duration in seconds.
fn seconds(command: &Value, name: &str) -> Duration {
    Duration::from_secs_f64(command[name].as_f64().unwrap_or_default())
}

fn say(line: Value) {
    let mut output = io::stdout().lock();
    writeln!(output, "{line}").and_then(|()| output.flush()).expect("stdout is open");
}

/// What the SDK says of a message. It tells no priority, and does not look whether a body is corrupted.
fn described(message: &MessageView) -> Value {
    let mut keys = message.keys().to_vec();
    keys.sort();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    json!({
        "message_id": message.message_id(),
        "topic": message.topic(),
        "body": String::from_utf8_lossy(message.body()),
        "size": message.body().len(),
        "tag": message.tag(),
        "keys": keys,
        "properties": message.properties(),
        "group": message.message_group(),
        "priority": null,
        "attempt": message.delivery_attempt(),
        "corrupted": null,
        "at": now.as_secs_f64(),
    })
}

async fn answered(agent: Arc<Agent>, mut command: Value) {
    let seq = command["seq"].take();
    let mut line = match tokio::spawn(agent.obey(command)).await {
        Ok(Ok(answer)) => json!({"answer": answer}),
        Ok(Err(failure)) => failure.described(),
        Err(panic) => json!({"error": "Panic", "code": null, "text": panic.to_string()}),
    };
    line["seq"] = seq;
    say(line);
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = env::args().collect();
    let mut option = ClientOption::default();
    option.set_access_url(&arguments[1]);
    option.set_timeout(REQUEST_TIMEOUT);
    option.set_enable_tls(env::var_os("SDK_TLS").is_some());
    if let [_, _, key, secret] = arguments.as_slice() {
        if !(key.is_empty() && secret.is_empty()) {
            option.set_access_key(key);
            option.set_secret_key(secret);
        }
    }
    let agent = Arc::new(Agent {
        option,
        producers: Mutex::default(),
        consumers: Mutex::default(),
        received: Mutex::default(),
        halves: Mutex::default(),
    });
    say(json!({"event": "ready"}));
    let reading = tokio::task::spawn_blocking(move || {
        let handle = tokio::runtime::Handle::current();
        for line in io::stdin().lock().lines() {
            let command = serde_json::from_str(&line.expect("stdin is readable")).expect("a command");
            handle.spawn(answered(agent.clone(), command));
        }
    });
    reading.await.expect("reads commands until there are no more");
    std::process::exit(0);
}
