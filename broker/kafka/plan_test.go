package kafka

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Of a reused plan, as in use.
func TestInAWaveNoKeyHasTwoTopics(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	all := []*topic{{name: "a"}, {name: "b"}, {name: "c"}}
	var p plan
	for range 300 {
		n, keys := 1+random.IntN(400), 1+random.IntN(50)
		batch := make([]*outbox.Message, n)
		p.reset(n)
		for i := range batch {
			batch[i] = &outbox.Message{}
			if key := random.IntN(keys); key > 0 {
				batch[i].Key = fmt.Sprint(key)
			}
			p.topics[i] = all[random.IntN(len(all))]
			if random.IntN(10) > 0 { // the others aren't sent
				p.order = append(p.order, int32(i))
			}
		}
		sent := slices.Clone(p.order)
		p.divide(batch)

		type laneOf struct {
			wave int32
			key  string
		}
		topicOf := map[laneOf]*topic{}
		last := map[string]int32{}
		for at, i := range p.order {
			if at > 0 && p.wave[i] < p.wave[p.order[at-1]] {
				t.Fatal("the waves are not in order")
			}
			key := batch[i].Key
			if key == "" {
				continue
			}
			if before, found := last[key]; found && before >= i {
				t.Fatalf("key %s: message %d is sent before %d", key, before, i)
			}
			last[key] = i
			l := laneOf{p.wave[i], key}
			if before := topicOf[l]; before != nil && before != p.topics[i] {
				t.Fatalf("key %s has two topics in wave %d", key, p.wave[i])
			}
			topicOf[l] = p.topics[i]
		}
		slices.Sort(p.order)
		if !slices.Equal(p.order, sent) {
			t.Fatal("something was added or lost")
		}
	}
}

func TestKeysThatKeepTheirTopicNeedOneWave(t *testing.T) {
	t.Parallel()
	a, b := &topic{name: "a"}, &topic{name: "b"}
	batch := make([]*outbox.Message, 1000)
	var p plan
	p.reset(len(batch))
	for i := range batch {
		batch[i] = &outbox.Message{Key: fmt.Sprint(i % 100)}
		p.topics[i] = []*topic{a, b}[i%2]
		p.order = append(p.order, int32(i))
	}
	p.divide(batch)
	if p.waves != 1 {
		t.Errorf("%d waves", p.waves)
	}
}

// The cheap estimate decides whether the exact size is asked for, so it must not be too small.
func TestARecordIsNeverLargerThanEstimated(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	text := func() string { return string(make([]byte, random.IntN(1<<random.IntN(16)))) }
	for range 2000 {
		m := &outbox.Message{Topic: text(), Key: text(), AggregateID: text(),
			AggregateType: text(), EventType: text(), ContentType: text(), Payload: []byte(text())}
		for range random.IntN(20) {
			m.Headers = append(m.Headers, outbox.Header{Name: text(), Value: text()})
		}
		m.CreatedAt = m.CreatedAt.AddDate(random.IntN(3)*2000, 0, 0)
		var s slab
		s.reset(1)
		r := s.add(m, "another topic", m.CreatedAt)
		if estimate, exact := atMost(m), libraryMargin+size(r); estimate < exact {
			t.Fatalf("estimate %d, exact %d", estimate, exact)
		}
	}
}

func TestASlabKeepsWhatItHasHandedOut(t *testing.T) {
	t.Parallel()
	var s slab
	var records []*kgo.Record
	s.reset(1000)
	for i := range 1000 {
		m := &outbox.Message{Key: fmt.Sprint("key-", i), Headers: []outbox.Header{{Name: "n", Value: fmt.Sprint("value-", i)}}}
		records = append(records, s.add(m, "", m.CreatedAt))
	}
	for i, r := range records {
		if r != &s.records[i] || string(r.Key) != fmt.Sprint("key-", i) ||
			string(r.Headers[0].Value) != fmt.Sprint("value-", i) || len(r.Headers) != 2 {
			t.Fatalf("record %d is %+v", i, r)
		}
	}
	s.reset(0)
	for i, r := range records {
		if r.Key != nil || r.Value != nil || r.Headers != nil {
			t.Fatalf("record %d still holds something", i)
		}
	}
}
