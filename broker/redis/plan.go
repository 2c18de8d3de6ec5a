package redis

import (
	"github.com/pgoutbox/outbox"
)

// A script blocks the server while it runs: about a millisecond for this much.
const (
	chunkMessages = 128
	chunkBytes    = 128 << 10

	// A key stays in its script beyond that, up to this size.
	fullMessages = 1024
	fullBytes    = 1 << 20
)

// chunk is the work of one script: messages of one stream, in the order of the batch.
type chunk struct {
	stream   string
	messages []int32
	bytes    int // about as many
	packed   int // as they are sent
}

func (c *chunk) roomForNew() bool { return len(c.messages) < chunkMessages && c.bytes < chunkBytes }

func (c *chunk) roomForMore(size int) bool {
	return len(c.messages) < fullMessages && (len(c.messages) == 0 || c.bytes+size <= fullBytes)
}

// plan deals the messages of a batch to scripts, and the scripts to waves. The scripts of a wave share no key, so they
// are sent at once; the next wave is sent after their answers.
//
// A key's messages go into one script as long as they are for one stream and there is room. Later ones go into a later
// wave: two scripts on two nodes, or a second script after the first has failed, would invert the key.
type plan struct {
	waves [][]*chunk
	open  map[scriptKey]*chunk // scripts that take messages of new keys
	lanes map[string]*lane
	of    []int // the lane of each message, 0 for none
}

type scriptKey struct {
	stream string
	wave   int
}

// lane is the state of a key.
type lane struct {
	number int
	wave   int
	last   *chunk // nil until a message of it is planned
	failed bool   // one of its messages can't be sent, so later ones are skipped
}

func newPlan(n int) *plan {
	return &plan{open: make(map[scriptKey]*chunk), lanes: make(map[string]*lane, n), of: make([]int, n)}
}

// lane returns the lane of m, nil if it has no key.
func (p *plan) lane(m *outbox.Message) *lane {
	key := m.OrderingKey()
	if key == "" {
		return nil
	}
	l := p.lanes[key]
	if l == nil {
		l = &lane{number: len(p.lanes) + 1}
		p.lanes[key] = l
	}
	return l
}

// add plans message i of that size.
func (p *plan) add(i int32, l *lane, stream string, size int) {
	if l == nil {
		p.put(p.chunk(scriptKey{stream, 0}), i, size)
		return
	}
	p.of[i] = l.number
	if l.last == nil || l.last.stream != stream || !l.last.roomForMore(size) {
		if l.last != nil {
			l.wave++
		}
		l.last = p.chunk(scriptKey{stream, l.wave})
	}
	p.put(l.last, i, size)
}

func (p *plan) put(c *chunk, i int32, size int) {
	c.messages = append(c.messages, i)
	c.bytes += size
}

// chunk returns the script that takes messages of new keys for that stream.
func (p *plan) chunk(key scriptKey) *chunk {
	c := p.open[key]
	if c != nil && c.roomForNew() {
		return c
	}
	c = &chunk{stream: key.stream, messages: make([]int32, 0, 32)}
	p.open[key] = c
	for len(p.waves) <= key.wave {
		p.waves = append(p.waves, nil)
	}
	p.waves[key.wave] = append(p.waves[key.wave], c)
	return c
}
