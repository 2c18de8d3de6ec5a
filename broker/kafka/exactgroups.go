package kafka

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Transactional ids, and keys of the cursor topic, consist of the destination's id, the shard group and a number. All
// groups of a destination have the same cursor topic.

func (e *ExactlyOnce) transactionalID(group, n int) string {
	return e.id + "-" + strconv.Itoa(group) + "-" + strconv.Itoa(n)
}

// markName ends the keys of marks, in place of an id's number.
const markName = "mark"

// markKey is the key of the record up to which the topic is read.
func (e *ExactlyOnce) markKey() string { return e.id + "-" + strconv.Itoa(e.group) + "-" + markName }

// strangers are the other shard groups that have begun: each leaves a mark before anything else.
func (e *ExactlyOnce) strangers(cursors map[string]*part) (groups []int) {
	for key := range cursors {
		if group, _, ok := e.parseKey(key); ok && group != e.group && !slices.Contains(groups, group) {
			groups = append(groups, group)
		}
	}
	return groups
}

// fenceStrangers fences all ids of other shard groups, including those that have published nothing.
func (e *ExactlyOnce) fenceStrangers(ctx context.Context, groups []int) error {
	for _, group := range groups {
		var all sync.WaitGroup
		var errs [ids]error
		for n := range ids {
			s := &seat{cluster: &e.broker.cluster, tx: &transactor{id: e.transactionalID(group, n)}}
			all.Go(func() {
				errs[n] = s.produce(ctx)
				s.discard()
			})
		}
		all.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			return err
		}
	}
	return nil
}

// parseKey splits a key of the cursor topic. id is false for a mark.
func (e *ExactlyOnce) parseKey(key string) (group int, id, ok bool) {
	rest, ok := strings.CutPrefix(key, e.id+"-")
	if !ok {
		return 0, false, false
	}
	first, second, ok := strings.Cut(rest, "-")
	group, err := strconv.Atoi(first)
	return group, second != markName, ok && err == nil
}
