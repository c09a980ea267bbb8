package main

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

func seconds(number float64) time.Duration { return time.Duration(number * float64(time.Second)) }

func filters(subscriptions map[string][2]string) map[string]*rocketmq.FilterExpression {
	kinds := map[string]rocketmq.FilterExpressionType{"TAG": rocketmq.TAG, "SQL": rocketmq.SQL92}
	found := map[string]*rocketmq.FilterExpression{}
	for topic, filter := range subscriptions {
		found[topic] = rocketmq.NewFilterExpressionWithType(filter[1], kinds[filter[0]])
	}
	return found
}

// described adds what the SDK says of a message. It tells no priority, and nobody whether a body is corrupted.
func described(message *rocketmq.MessageView, told line) line {
	keys := slices.Sorted(slices.Values(message.GetKeys()))
	if keys == nil {
		keys = []string{}
	}
	told["message_id"] = message.GetMessageId()
	told["topic"] = message.GetTopic()
	told["body"] = string(message.GetBody())
	told["size"] = len(message.GetBody())
	told["tag"] = message.GetTag()
	told["keys"] = keys
	told["properties"] = message.GetProperties()
	told["group"] = message.GetMessageGroup()
	told["lite"] = message.GetLiteTopic()
	told["priority"] = nil
	told["attempt"] = message.GetDeliveryAttempt()
	told["corrupted"] = nil
	told["at"] = float64(time.Now().UnixMicro()) / 1e6
	return told
}

func (a *agent) simple(c command) (any, error) {
	made, err := rocketmq.NewSimpleConsumer(
		a.configured(c.Namespace, c.Group),
		rocketmq.WithSimpleAwaitDuration(seconds(c.AwaitS)),
		rocketmq.WithSimpleSubscriptionExpressions(filters(c.Subscriptions)),
	)
	return nil, a.started(c.ID, made, err)
}

// receive answers with no messages where the SDK has an error: its Receive (simple_consumer.go) makes one of
// MESSAGE_NOT_FOUND.
func (a *agent) receive(c command) (any, error) {
	consumer, err := named[rocketmq.SimpleConsumer](a, c.ID)
	if err != nil {
		return nil, err
	}
	messages, err := consumer.Receive(context.Background(), c.Most, seconds(c.InvisibleS))
	status, ok := rocketmq.AsErrRpcStatus(err)
	if nothing := ok && status.GetCode() == int32(v2.Code_MESSAGE_NOT_FOUND); err != nil && !nothing {
		return nil, err
	}
	answer := []line{}
	a.lock.Lock()
	defer a.lock.Unlock()
	for _, message := range messages {
		a.received[c.ID+" "+message.GetMessageId()] = message
		answer = append(answer, described(message, line{}))
	}
	return answer, nil
}

func (a *agent) delivered(c command) (*rocketmq.MessageView, error) {
	a.lock.Lock()
	defer a.lock.Unlock()
	if message, ok := a.received[c.ID+" "+c.MessageID]; ok {
		return message, nil
	}
	return nil, errors.New("there is no such message: " + c.MessageID)
}

type ackStatus struct{}

// reasons has the reason and description with which messages are given back, by message id.
var reasons sync.Map

// explained adds the reason of a message to a request that gives it back.
func explained(ctx context.Context, request any) context.Context {
	change, ok := request.(*v2.ChangeInvisibleDurationRequest)
	if !ok {
		return ctx
	}
	because, ok := reasons.Load(change.GetMessageId())
	if !ok {
		return ctx
	}
	failure := because.([]string)
	return metadata.AppendToOutgoingContext(
		ctx, "x-aerobee-reason", url.PathEscape(failure[0]), "x-aerobee-description", url.PathEscape(failure[1]),
	)
}

// The SDK's Ack (simple_consumer.go) returns nil, whatever the server's answer is. So each connection leaves the
// status of an acknowledgement with whoever asked for it.
func init() {
	leave := func(
		ctx context.Context, method string, request, reply any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker,
		options ...grpc.CallOption,
	) error {
		err := invoke(explained(ctx, request), method, request, reply, connection, options...)
		if answer, ok := reply.(*v2.AckMessageResponse); ok && err == nil {
			if status, asked := ctx.Value(ackStatus{}).(*v2.Status); asked {
				status.Code, status.Message = answer.GetStatus().GetCode(), answer.GetStatus().GetMessage()
			}
		}
		return err
	}
	connect := rocketmq.NewRpcClient
	rocketmq.NewRpcClient = func(target string, options ...rocketmq.RpcClientOption) (rocketmq.RpcClient, error) {
		intercepted := rocketmq.WithDialOptions(grpc.WithChainUnaryInterceptor(leave))
		return connect(target, append(options, rocketmq.WithRpcClientConnOption(intercepted))...)
	}
}

func (a *agent) ack(c command) (any, error) {
	consumer, err := named[rocketmq.SimpleConsumer](a, c.ID)
	if err != nil {
		return nil, err
	}
	message, err := a.delivered(c)
	if err != nil {
		return nil, err
	}
	status := &v2.Status{}
	if err := consumer.Ack(context.WithValue(context.Background(), ackStatus{}, status), message); err != nil {
		return nil, err
	}
	if status.Code != v2.Code_OK {
		return nil, &rocketmq.ErrRpcStatus{Code: int32(status.Code), Message: status.Message}
	}
	return nil, nil
}

func (a *agent) change(c command) (any, error) {
	consumer, err := named[rocketmq.SimpleConsumer](a, c.ID)
	if err != nil {
		return nil, err
	}
	message, err := a.delivered(c)
	if err != nil {
		return nil, err
	}
	if c.Because != nil {
		reasons.Store(c.MessageID, c.Because)
	}
	return nil, consumer.ChangeInvisibleDuration(message, seconds(c.InvisibleS))
}

// listener succeeds from call SucceedFrom of a message on; at once for bodies that are not in Only, when that is given.
func listener(c command) *rocketmq.FuncMessageListener {
	var lock sync.Mutex
	calls := map[string]int{}
	consume := func(message *rocketmq.MessageView) rocketmq.ConsumerResult {
		lock.Lock()
		calls[message.GetMessageId()]++
		call := calls[message.GetMessageId()]
		lock.Unlock()
		say(described(message, line{"event": "delivered", "id": c.ID, "call": call}))
		time.Sleep(seconds(c.SleepS))
		concerned := c.Only == nil || slices.Contains(c.Only, string(message.GetBody()))
		if concerned && call < c.SucceedFrom {
			if c.Because != nil {
				reasons.Store(message.GetMessageId(), c.Because)
			}
			return rocketmq.FAILURE
		}
		return rocketmq.SUCCESS
	}
	return &rocketmq.FuncMessageListener{Consume: consume}
}

func (a *agent) push(c command) (any, error) {
	made, err := rocketmq.NewPushConsumer(
		a.configured(c.Namespace, c.Group),
		rocketmq.WithPushSubscriptionExpressions(filters(c.Subscriptions)),
		rocketmq.WithPushMessageListener(listener(c)),
	)
	return nil, a.started(c.ID, made, err)
}
