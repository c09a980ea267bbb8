package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

var resolutions = map[string]rocketmq.TransactionResolution{
	"UNKNOWN": rocketmq.UNKNOWN, "COMMIT": rocketmq.COMMIT, "ROLLBACK": rocketmq.ROLLBACK,
}

func (a *agent) producer(c command) (any, error) {
	options := []rocketmq.ProducerOption{rocketmq.WithTopics(c.Topics...)}
	if c.Resolution != "" {
		check := func(message *rocketmq.MessageView) rocketmq.TransactionResolution {
			say(described(message, line{"event": "check", "id": c.ID}))
			return resolutions[c.Resolution]
		}
		options = append(options, rocketmq.WithTransactionChecker(&rocketmq.TransactionChecker{Check: check}))
	}
	made, err := rocketmq.NewProducer(a.configured(c.Namespace, ""), options...)
	return nil, a.started(c.ID, made, err)
}

func (a *agent) send(c command) (any, error) {
	producer, err := named[rocketmq.Producer](a, c.ID)
	if err != nil {
		return nil, err
	}
	message, err := messageOf(c)
	if err != nil {
		return nil, err
	}
	var receipts []*rocketmq.SendReceipt
	if c.Transaction == "" {
		receipts, err = producer.Send(context.Background(), message)
	} else {
		transaction := producer.BeginTransaction()
		a.lock.Lock()
		a.transactions[c.Transaction] = transaction
		a.lock.Unlock()
		receipts, err = producer.SendWithTransaction(context.Background(), message, transaction)
	}
	if err != nil {
		return nil, err
	}
	return line{
		"message_id":     receipts[0].MessageID,
		"offset":         receipts[0].Offset,
		"transaction_id": receipts[0].TransactionId,
		"recall_handle":  receipts[0].RecallHandle,
	}, nil
}

func messageOf(c command) (*rocketmq.Message, error) {
	message := &rocketmq.Message{Topic: c.Topic, Body: make([]byte, c.Size)}
	if c.Body != nil {
		message.Body = []byte(*c.Body)
	}
	if c.Tag != "" {
		message.SetTag(c.Tag)
	}
	if c.Keys != "" {
		message.SetKeys(c.Keys)
	}
	if c.Group != "" {
		message.SetMessageGroup(c.Group)
	}
	if len(c.Lite) > 0 {
		var name string
		if err := json.Unmarshal(c.Lite, &name); err != nil {
			return nil, err
		}
		message.SetLiteTopic(name)
	}
	if c.DeliverAt != nil {
		message.SetDelayTimestamp(time.Unix(*c.DeliverAt, 0))
	}
	for name, value := range c.Properties {
		message.AddProperty(name, value)
	}
	if c.Priority == nil {
		return message, nil
	}
	return message, message.SetPriority(*c.Priority)
}

func (a *agent) commit(c command) (any, error) {
	transaction, err := a.transaction(c)
	if err != nil {
		return nil, err
	}
	return nil, transaction.Commit()
}

func (a *agent) rollback(c command) (any, error) {
	transaction, err := a.transaction(c)
	if err != nil {
		return nil, err
	}
	return nil, transaction.RollBack()
}

func (a *agent) transaction(c command) (rocketmq.Transaction, error) {
	a.lock.Lock()
	defer a.lock.Unlock()
	if found, ok := a.transactions[c.Transaction]; ok {
		return found, nil
	}
	return nil, errors.New("there is no such transaction: " + c.Transaction)
}

func (a *agent) recall(c command) (any, error) {
	producer, err := named[rocketmq.Producer](a, c.ID)
	if err != nil {
		return nil, err
	}
	return producer.Recall(context.Background(), c.Topic, c.Handle)
}
