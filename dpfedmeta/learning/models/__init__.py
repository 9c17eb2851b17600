"""Small stateless networks: no running statistics, no hidden state, weights always passed in."""
