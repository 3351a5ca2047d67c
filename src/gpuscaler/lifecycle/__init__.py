"""What happens between plans, pure like them: machines that register, promised pods, interruptions, terminations, orders from plans."""
