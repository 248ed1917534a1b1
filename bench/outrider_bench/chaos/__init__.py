"""Real processes, real faults: kills, stops, cut and slow links while seeded requests run, and a count of what was lost or differs."""
