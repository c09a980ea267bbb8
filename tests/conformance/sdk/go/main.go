// Runs with the official Go SDK and does what it is told, line by line.
//
// A command is one JSON object on stdin: {"seq": N, "do": NAME, "id": CLIENT, …}. Commands run side by side. The answer
// is one JSON object on stdout, {"seq": N, "answer": …} or {"seq": N, "error": CLASS, "code": …, "text": …}. What the
// SDK calls back becomes lines of its own: {"event": "delivered", …}, {"event": "check", …}. Knows nothing of the tests.
// A panic in a goroutine of the SDK ends the process, as it would end a user's.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"sync"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

const longestLine = 8 << 20 // bytes of a command

type line map[string]any

var output sync.Mutex

func say(told line) {
	text, err := json.Marshal(told)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	os.Stdout.Write(append(text, '\n'))
}

// A command, with the fields of all of them. A pointer is nil where the field is absent.
type command struct {
	Seq           int
	Do            string
	ID            string
	Topic         string
	Topics        []string
	Namespace     string
	Group         string // of messages when sent, of consumers else
	Resolution    string
	Body          *string
	Size          int // of a body of zeros, where there is no Body
	Tag           string
	Keys          string
	DeliverAt     *int64 `json:"deliver_at"` // seconds since the epoch
	Priority      *int32
	Properties    map[string]string
	Transaction   string
	Handle        string
	Subscriptions map[string][2]string // topic → type and expression
	AwaitS        float64              `json:"await_s"`
	InvisibleS    float64              `json:"invisible_s"`
	Most          int32
	MessageID     string `json:"message_id"`
	SucceedFrom   int    `json:"succeed_from"`
	Only          []string
	SleepS        float64         `json:"sleep_s"`
	Because       []string        // reason and description of a failure
	Lite          json.RawMessage // one name when sent, a list when subscribed to
}

type client interface {
	Start() error
	GracefulStop() error
}

type agent struct {
	configuration rocketmq.Config
	lock          sync.Mutex
	clients       map[string]client
	received      map[string]*rocketmq.MessageView // by client and message id
	transactions  map[string]rocketmq.Transaction
}

func (a *agent) configured(namespace, consumerGroup string) *rocketmq.Config {
	configuration := a.configuration
	configuration.NameSpace = namespace
	configuration.ConsumerGroup = consumerGroup
	return &configuration
}

// started keeps a client under its id, unless it was not even made.
func (a *agent) started(id string, made client, err error) error {
	if err != nil {
		return err
	}
	a.lock.Lock()
	a.clients[id] = made
	a.lock.Unlock()
	return made.Start()
}

// named is the client of the id, which must be of the type T.
func named[T client](a *agent, id string) (found T, err error) {
	a.lock.Lock()
	defer a.lock.Unlock()
	found, ok := a.clients[id].(T)
	if !ok {
		return found, fmt.Errorf("there is no such client: %s", id)
	}
	return found, nil
}

func (a *agent) close(c command) (any, error) {
	closing, err := named[client](a, c.ID)
	if err != nil {
		return nil, err
	}
	a.lock.Lock()
	delete(a.clients, c.ID)
	a.lock.Unlock()
	return nil, closing.GracefulStop()
}

func (a *agent) obey(c command) {
	commands := map[string]func(command) (any, error){
		"producer": a.producer, "send": a.send, "commit": a.commit, "rollback": a.rollback, "recall": a.recall,
		"simple": a.simple, "receive": a.receive, "ack": a.ack, "change": a.change, "push": a.push, "close": a.close,
		"lite": a.lite, "subscribe": a.subscribe, "unsubscribe": a.unsubscribe,
	}
	run, ok := commands[c.Do]
	if !ok {
		run = func(c command) (any, error) { return nil, fmt.Errorf("there is no such command: %s", c.Do) }
	}
	answer, err := run(c)
	if err != nil {
		say(line{"seq": c.Seq, "error": fmt.Sprintf("%T", err), "code": codeOf(err), "text": err.Error()})
		return
	}
	say(line{"seq": c.Seq, "answer": answer})
}

var codeInText = regexp.MustCompile(`CODE: ([A-Z_]+), MESSAGE: `)

// codeOf is the public protocol's code, or nil. A failed start has it in its text only: startUp (client.go) wraps
// its cause with %v.
func codeOf(err error) any {
	if status, ok := rocketmq.AsErrRpcStatus(err); ok {
		return status.GetCode()
	}
	if found := codeInText.FindStringSubmatch(err.Error()); found != nil {
		return v2.Code_value[found[1]]
	}
	return nil
}

func main() {
	_, rocketmq.EnableSsl = os.LookupEnv("SDK_TLS") // and it verifies nothing
	agent := &agent{
		configuration: rocketmq.Config{Endpoint: os.Args[1]},
		clients:       map[string]client{},
		received:      map[string]*rocketmq.MessageView{},
		transactions:  map[string]rocketmq.Transaction{},
	}
	if len(os.Args) > 3 && os.Args[2]+os.Args[3] != "" {
		agent.configuration.Credentials = &credentials.SessionCredentials{AccessKey: os.Args[2], AccessSecret: os.Args[3]}
	}
	say(line{"event": "ready"})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, longestLine)
	for lines.Scan() {
		var told command
		if err := json.Unmarshal(lines.Bytes(), &told); err != nil {
			panic(err)
		}
		go agent.obey(told)
	}
	if err := lines.Err(); err != nil {
		panic(err)
	}
}
