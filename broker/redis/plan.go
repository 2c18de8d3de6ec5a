package redis

import (
	"github.com/pgoutbox/outbox"
)

// A script holds a server up for as long as it runs: about a millisecond for this much.
const (
	chunkMessages = 128
	chunkBytes    = 128 << 10

	// A key stays in its script beyond that, up to here.
	fullMessages = 1024
	fullBytes    = 1 << 20
)

// chunk is the work of one script: messages of one stream, in the order of the batch.
type chunk struct {
	stream   string
	messages []int32
	bytes    int
}

func (c *chunk) roomForNew() bool { return len(c.messages) < chunkMessages && c.bytes < chunkBytes }

func (c *chunk) roomForMore(size int) bool {
	return len(c.messages) < fullMessages && (len(c.messages) == 0 || c.bytes+size <= fullBytes)
}

// plan deals the messages of a batch to scripts, and the scripts to waves. Those of a wave are sent at once, for none
// shares a key with another; the next wave is sent after their answers.
//
// A key's messages go into one script as long as they are for one stream and there is room. What comes then goes into
// a later wave: two scripts on two nodes, or the second one after the first has failed, would invert the key.
type plan struct {
	waves [][]*chunk
	open  map[place]*chunk // that takes messages of new keys
	lanes map[string]*lane
	of    []int // the lane of each message, 0 for none
}

type place struct {
	stream string
	wave   int
}

// lane is where a key stands.
type lane struct {
	number int
	wave   int
	last   *chunk // nil while nothing of it was planned
	failed bool   // a message of it can't be sent, and what comes behind is skipped
}

func newPlan(n int) *plan {
	return &plan{open: make(map[place]*chunk), lanes: make(map[string]*lane, n), of: make([]int, n)}
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
		p.put(p.chunk(place{stream, 0}), i, size)
		return
	}
	p.of[i] = l.number
	if l.last == nil || l.last.stream != stream || !l.last.roomForMore(size) {
		if l.last != nil {
			l.wave++
		}
		l.last = p.chunk(place{stream, l.wave})
	}
	p.put(l.last, i, size)
}

func (p *plan) put(c *chunk, i int32, size int) {
	c.messages = append(c.messages, i)
	c.bytes += size
}

// chunk returns the script that takes messages of new keys there.
func (p *plan) chunk(at place) *chunk {
	c := p.open[at]
	if c != nil && c.roomForNew() {
		return c
	}
	c = &chunk{stream: at.stream, messages: make([]int32, 0, 32)}
	p.open[at] = c
	for len(p.waves) <= at.wave {
		p.waves = append(p.waves, nil)
	}
	p.waves[at.wave] = append(p.waves[at.wave], c)
	return c
}
