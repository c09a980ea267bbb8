//! Simple consumers, the only ones that the SDK has.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use rocketmq::conf::SimpleConsumerOption;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageView;
use rocketmq::SimpleConsumer;
use serde_json::{json, Value};

use crate::{described, none_such, seconds, text, Agent, Answer, Failure};

/// One that asks for its topics in turn: the SDK's receive takes one topic, and knows of no subscriptions.
pub struct Consumer {
    consumer: SimpleConsumer,
    subscriptions: Vec<(String, FilterExpression)>,
    receives: AtomicUsize,
}

impl Consumer {
    pub async fn shutdown(self: Arc<Self>) -> Answer {
        let own = Arc::try_unwrap(self).map_err(|_| Failure::Agent("the consumer still receives".into()))?;
        own.consumer.shutdown().await?;
        Ok(Value::Null)
    }
}

impl Agent {
    pub async fn simple(&self, command: &Value) -> Answer {
        let subscriptions = filters(command);
        let mut option = SimpleConsumerOption::default();
        option.set_consumer_group(text(command, "group"));
        option.set_topics(subscriptions.iter().map(|(topic, _)| topic.as_str()).collect());
        let mut client_option = self.option.clone();
        client_option.set_long_polling_timeout(seconds(command, "await_s"));
        let mut consumer = SimpleConsumer::new(option, client_option)?;
        consumer.start().await?;
        let own = Consumer { consumer, subscriptions, receives: AtomicUsize::new(0) };
        self.consumers.lock().unwrap().insert(text(command, "id").to_owned(), Arc::new(own));
        Ok(Value::Null)
    }

    pub async fn receive(&self, command: &Value) -> Answer {
        let id = text(command, "id");
        let own = self.consumer(id)?;
        let turn = own.receives.fetch_add(1, Ordering::Relaxed) % own.subscriptions.len();
        let (topic, filter) = &own.subscriptions[turn];
        let most = command["most"].as_i64().unwrap_or_default() as i32;
        let messages = own.consumer.receive_with(topic, filter, most, seconds(command, "invisible_s")).await?;
        let answer = messages.iter().map(described).collect();
        let received: HashMap<_, _> = messages
            .into_iter()
            .map(|message| ((id.to_owned(), message.message_id().to_owned()), Arc::new(message)))
            .collect();
        self.received.lock().unwrap().extend(received);
        Ok(answer)
    }

    pub async fn ack(&self, command: &Value) -> Answer {
        let (id, message_id) = (text(command, "id"), text(command, "message_id"));
        let own = self.consumer(id)?;
        let key = (id.to_owned(), message_id.to_owned());
        let message: Option<Arc<MessageView>> = self.received.lock().unwrap().get(&key).cloned();
        own.consumer.ack(&*message.ok_or_else(|| none_such("message", message_id))?).await?;
        Ok(json!(null))
    }

    fn consumer(&self, id: &str) -> Result<Arc<Consumer>, Failure> {
        self.consumers.lock().unwrap().get(id).cloned().ok_or_else(|| none_such("client", id))
    }
}

fn filters(command: &Value) -> Vec<(String, FilterExpression)> {
    let subscriptions = command["subscriptions"].as_object();
    let found = subscriptions.into_iter().flatten().map(|(topic, filter)| {
        let kind = if filter[0] == "SQL" { FilterType::Sql } else { FilterType::Tag };
        (topic.clone(), FilterExpression::new(kind, filter[1].as_str().unwrap_or_default()))
    });
    found.collect()
}
