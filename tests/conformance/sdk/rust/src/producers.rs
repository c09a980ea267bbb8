//! Producers and the transactions that they begin.

use std::collections::HashMap;
use std::sync::Arc;

use rocketmq::conf::ProducerOption;
use rocketmq::error::ClientError;
use rocketmq::model::message::{Message, MessageBuilder};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::Producer;
use serde_json::{json, Value};
use tokio::sync::oneshot;

use crate::{described, none_such, say, text, Agent, Answer, Failure};

#[derive(Clone)]
pub struct RunningProducer(Arc<Producer>);

impl RunningProducer {
    pub async fn shutdown(self) -> Answer {
        let producer = Arc::try_unwrap(self.0).map_err(|_| Failure::Agent("the producer still sends".into()))?;
        producer.shutdown().await?;
        Ok(Value::Null)
    }
}

/// How a half message ends. Its transaction borrows the producer, so that one task owns both and waits for this.
struct End {
    commit: bool,
    result: oneshot::Sender<Result<(), ClientError>>,
}

/// A transaction that is not ended.
pub struct Half(oneshot::Sender<End>);

impl Agent {
    pub async fn producer(&self, command: &Value) -> Answer {
        let mut option = ProducerOption::default();
        option.set_topics(strings(&command["topics"]));
        let made = match command["resolution"].as_str() {
            None => Producer::new(option, self.option.clone()),
            Some(resolution) => {
                let (id, resolution) = (text(command, "id").to_owned(), resolution.to_owned());
                let check = move |_transaction: String, message| {
                    let mut line = described(&message);
                    line["event"] = json!("check");
                    line["id"] = json!(id);
                    say(line);
                    match resolution.as_str() {
                        "COMMIT" => TransactionResolution::COMMIT,
                        "ROLLBACK" => TransactionResolution::ROLLBACK,
                        _ => TransactionResolution::UNKNOWN,
                    }
                };
                Producer::new_transaction_producer(option, self.option.clone(), Box::new(check))
            }
        };
        let mut producer = made?;
        producer.start().await?;
        let running = RunningProducer(Arc::new(producer));
        self.producers.lock().unwrap().insert(text(command, "id").to_owned(), running);
        Ok(Value::Null)
    }

    pub async fn send(&self, command: &Value) -> Answer {
        let id = text(command, "id");
        let RunningProducer(producer) =
            self.producers.lock().unwrap().get(id).cloned().ok_or_else(|| none_such("client", id))?;
        let message = message_of(command)?;
        let (message_id, transaction_id) = match command["transaction"].as_str() {
            None => {
                let receipt = producer.send(message).await?;
                (receipt.message_id().to_owned(), receipt.transaction_id().to_owned())
            }
            Some(name) => self.send_half(name, producer, message).await?,
        };
        // The SDK tells neither an offset nor a handle for recalling.
        Ok(json!({"message_id": message_id, "offset": null, "transaction_id": transaction_id, "recall_handle": null}))
    }

    /// The ids of the message and of its transaction, which waits for its end under the name.
    async fn send_half(
        &self,
        name: &str,
        producer: Arc<Producer>,
        message: impl Message + Send + 'static,
    ) -> Result<(String, String), ClientError> {
        let (half, end) = oneshot::channel::<End>();
        let (sent, receipt) = oneshot::channel();
        tokio::spawn(async move {
            match producer.send_transaction_message(message).await {
                Err(error) => drop(sent.send(Err(error))),
                Ok(transaction) => {
                    let ids = (transaction.message_id().to_owned(), transaction.transaction_id().to_owned());
                    drop(sent.send(Ok(ids)));
                    if let Ok(End { commit, result }) = end.await {
                        let ended = if commit { transaction.commit().await } else { transaction.rollback().await };
                        drop(result.send(ended));
                    }
                }
            }
        });
        let ids = receipt.await.expect("the SDK sent without a panic")?;
        self.halves.lock().unwrap().insert(name.to_owned(), Half(half));
        Ok(ids)
    }

    pub async fn end(&self, command: &Value, commit: bool) -> Answer {
        let name = text(command, "transaction");
        let Half(half) = self.halves.lock().unwrap().remove(name).ok_or_else(|| none_such("open transaction", name))?;
        let (result, ended) = oneshot::channel();
        half.send(End { commit, result }).map_err(|_| none_such("open transaction", name))?;
        ended.await.expect("the SDK ended it without a panic")?;
        Ok(Value::Null)
    }
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn message_of(command: &Value) -> Result<impl Message + Send + 'static, ClientError> {
    let body = match command["body"].as_str() {
        Some(body) => body.as_bytes().to_vec(),
        None => vec![0; command["size"].as_u64().unwrap_or_default() as usize],
    };
    let mut message = MessageBuilder::builder().set_topic(text(command, "topic")).set_body(body);
    if let Some(tag) = command["tag"].as_str() {
        message = message.set_tag(tag);
    }
    if let Some(key) = command["keys"].as_str() {
        message = message.set_keys(vec![key]);
    }
    if let Some(group) = command["group"].as_str() {
        message = message.set_message_group(group);
    }
    if let Some(seconds) = command["deliver_at"].as_i64() {
        message = message.set_delivery_timestamp(seconds);
    }
    if let Some(properties) = command["properties"].as_object() {
        let properties: HashMap<&str, &str> =
            properties.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap_or_default())).collect();
        message = message.set_properties(properties);
    }
    if command["transaction"].is_string() {
        message = message.enable_transaction();
    }
    message.build()
}
