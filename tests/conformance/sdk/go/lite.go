package main

import (
	"encoding/json"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

// The SDK asks for leases of this length, and renews none.
const liteLease = 15 * time.Second

func (a *agent) lite(c command) (any, error) {
	made, err := rocketmq.NewLitePushConsumer(
		a.configured(c.Namespace, c.Group),
		rocketmq.NewLitePushConsumerConfig(c.Topic, liteLease),
		rocketmq.WithPushMessageListener(listener(c)),
	)
	return nil, a.started(c.ID, made, err)
}

// eachLite does something with each lite topic that the command names.
func (a *agent) eachLite(c command, do func(rocketmq.LitePushConsumer, string) error) error {
	consumer, err := named[rocketmq.LitePushConsumer](a, c.ID)
	if err != nil {
		return err
	}
	var names []string
	if err := json.Unmarshal(c.Lite, &names); err != nil {
		return err
	}
	for _, name := range names {
		if err := do(consumer, name); err != nil {
			return err
		}
	}
	return nil
}

func (a *agent) subscribe(c command) (any, error) {
	return nil, a.eachLite(c, rocketmq.LitePushConsumer.SubscribeLite)
}

func (a *agent) unsubscribe(c command) (any, error) {
	return nil, a.eachLite(c, rocketmq.LitePushConsumer.UnSubscribeLite)
}
