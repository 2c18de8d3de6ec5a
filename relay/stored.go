package relay

import "hash/maphash"

// Lanes whose holds wait in the database. There may be millions of them, so the core has no object for them. It
// remembers a hash of each, by which it knows what must wait behind holds, and asks the database which are due.

// laneKey stands for a lane. The seeds are random and secret, so nobody can write keys that collide. Two lanes of a
// million collide with a probability of 10⁻²⁷.
type laneKey [2]uint64

type storedLanes struct {
	seeds [2]maphash.Seed
	keys  map[laneKey]struct{}
}

func newStoredLanes() storedLanes {
	return storedLanes{seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, keys: make(map[laneKey]struct{})}
}

func (s *storedLanes) key(lane string) laneKey {
	return laneKey{maphash.String(s.seeds[0], lane), maphash.String(s.seeds[1], lane)}
}

func (s *storedLanes) has(lane string) bool {
	_, ok := s.keys[s.key(lane)]
	return ok
}

func (s *storedLanes) add(k laneKey)    { s.keys[k] = struct{}{} }
func (s *storedLanes) remove(k laneKey) { delete(s.keys, k) }
func (s *storedLanes) size() int        { return len(s.keys) }
